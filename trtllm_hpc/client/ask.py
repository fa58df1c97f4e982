"""One question to a served model, over gRPC or HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from trtllm_hpc.client.http import call_json
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.runtime.records import Endpoint

# See http.py: a proxy for the outside world must not be asked for a compute node.
GRPC_OPTIONS: tuple[tuple[str, Any], ...] = (("grpc.enable_http_proxy", 0),)


@dataclass(frozen=True)
class Answer:
    """What the model said, and how long it took."""

    protocol: str
    """``grpc`` or ``http``."""
    text: str
    latency_s: float
    """From the call to the whole answer, connection included."""
    output_tokens: int | None = None
    """As counted by the server; ``None`` if it does not say."""


def ask_grpc(
    endpoint: Endpoint, prompt: str, max_tokens: int, timeout_s: float, model: str = "ensemble"
) -> Answer:
    """Ask one question through Triton's gRPC endpoint.

    Raises:
        RequestFailed: with the server's own words.
    """
    from tritonclient.grpc import InferInput
    from tritonclient.utils import InferenceServerException, np_to_triton_dtype

    from trtllm_hpc.client.tensors import LENGTH_OUTPUT, TEXT_OUTPUT, first_text, text_inputs

    inputs = []
    for name, array in text_inputs(prompt, max_tokens).items():
        tensor = InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array))
    started = time.monotonic()
    with _grpc_client(endpoint) as client:
        try:
            result = client.infer(model, inputs, client_timeout=timeout_s)
        except InferenceServerException as error:
            raise RequestFailed(_grpc_words(error, endpoint, model)) from error
    latency_s = time.monotonic() - started
    output = result.as_numpy(TEXT_OUTPUT)
    if output is None or output.size == 0:
        raise RequestFailed(f"Model {model!r} answered over gRPC without a {TEXT_OUTPUT!r} output.")
    length = result.as_numpy(LENGTH_OUTPUT)
    tokens = None if length is None else int(length.reshape(-1)[0])
    return Answer("grpc", first_text(output), latency_s, tokens)


@contextmanager
def _grpc_client(endpoint: Endpoint) -> Iterator[Any]:
    """A Triton client that is closed whatever happens: an open one keeps Python from exiting."""
    from tritonclient.grpc import InferenceServerClient

    client = InferenceServerClient(endpoint.grpc, channel_args=list(GRPC_OPTIONS))
    try:
        yield client
    finally:
        client.close()


def _grpc_words(error: Any, endpoint: Endpoint, model: str) -> str:
    return f"Model {model!r} at {endpoint.grpc} (gRPC) failed: {error.message() or error.status()}"


def ask_http_generate(
    endpoint: Endpoint, prompt: str, max_tokens: int, timeout_s: float, model: str = "ensemble"
) -> Answer:
    """Ask one question through Triton's HTTP ``generate`` extension.

    Raises:
        RequestFailed: with the server's own words.
    """
    from urllib.parse import quote

    body = {"text_input": prompt, "max_tokens": max_tokens, "bad_words": "", "stop_words": ""}
    started = time.monotonic()
    reply = call_json(endpoint, f"v2/models/{quote(model, safe='')}/generate", timeout_s, body)
    latency_s = time.monotonic() - started
    if not isinstance(reply, dict) or not isinstance(reply.get("text_output"), str):
        raise RequestFailed(f"Model {model!r} answered over HTTP without a 'text_output'.")
    length = reply.get("sequence_length")
    return Answer("http", reply["text_output"], latency_s, length if isinstance(length, int) else None)
