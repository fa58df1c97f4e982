"""One question to a served model, over gRPC or HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from trtllm_hpc.client.describe import describe
from trtllm_hpc.client.http import call_json
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.runtime.records import Endpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    logits: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Those that were asked for, by output: ``context_logits`` of shape [1, prompt, vocabulary],
    ``generation_logits`` of shape [1, beams, answer, vocabulary]."""

    def as_json(self) -> dict[str, Any]:
        """The answer as plain JSON types; of logits the shapes only."""
        record = {name: value for name, value in vars(self).items() if name != "logits"}
        shapes = {name: list(array.shape) for name, array in self.logits.items()}
        return {**record, "logits": shapes} if shapes else record


def ask_grpc(
    endpoint: Endpoint,
    prompt: str,
    max_tokens: int,
    timeout_s: float,
    model: str = "ensemble",
    logits: Sequence[str] = (),
) -> Answer:
    """Ask one question through Triton's gRPC endpoint.

    By the streaming call, which a decoupled model needs and any other takes too.

    Args:
        logits: outputs to ask for, ``context_logits`` and ``generation_logits``.

    Raises:
        RequestFailed: with the server's own words.
    """
    from tritonclient.grpc import InferInput
    from tritonclient.utils import np_to_triton_dtype

    from trtllm_hpc.client.tensors import (
        LENGTH_OUTPUT,
        TEXT_OUTPUT,
        first_text,
        logits_inputs,
        text_inputs,
    )

    inputs = []
    arrays = text_inputs(prompt, max_tokens, describe(endpoint, model, timeout_s).text)
    for name, array in {**arrays, **logits_inputs(logits)}.items():
        tensor = InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array))
    started = time.monotonic()
    with _grpc_client(endpoint) as client:
        parts = _stream(client, endpoint, model, inputs, timeout_s)
    latency_s = time.monotonic() - started
    outputs = [part.as_numpy(TEXT_OUTPUT) for part in parts]
    texts = [first_text(output) for output in outputs if output is not None and output.size]
    if not texts:
        raise RequestFailed(f"Model {model!r} answered over gRPC without a {TEXT_OUTPUT!r} output.")
    lengths = [length for part in parts if (length := part.as_numpy(LENGTH_OUTPUT)) is not None]
    tokens = int(lengths[-1].reshape(-1)[0]) if lengths else None
    return Answer("grpc", "".join(texts), latency_s, tokens, _logits(parts, logits, model))


def _logits(parts: list[Any], wanted: Sequence[str], model: str) -> dict[str, NDArray[Any]]:
    """The last that arrived of each; the answer comes in one piece unless it is streamed."""
    found = {}
    for name in wanted:
        arrays = [array for part in parts if (array := part.as_numpy(name)) is not None]
        if not arrays:
            raise RequestFailed(f"Model {model!r} answered over gRPC without {name}.")
        found[name] = arrays[-1]
    return found


def _stream(client: Any, endpoint: Endpoint, model: str, inputs: list[Any], timeout_s: float) -> list[Any]:
    """Every response to one request, in order."""
    from tritonclient.utils import InferenceServerException

    arrived: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
    deadline = time.monotonic() + timeout_s
    parts: list[Any] = []
    try:
        client.start_stream(lambda result, error: arrived.put((result, error)), stream_timeout=timeout_s)
        # The last response may be empty: without asking for it nobody would know that it was the last.
        client.async_stream_infer(model, inputs, enable_empty_final_response=True)
        while True:
            result, error = arrived.get(timeout=max(0.0, deadline - time.monotonic()))
            if error is not None:
                raise error
            parts.append(result)
            if result.get_response().parameters["triton_final_response"].bool_param:
                return parts
    except Empty:
        raise RequestFailed(
            f"Model {model!r} at {endpoint.grpc} did not answer in {timeout_s:g} s."
        ) from None
    except InferenceServerException as error:
        raise RequestFailed(_grpc_words(error, endpoint, model)) from error
    finally:
        client.stop_stream(cancel_requests=True)


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

    from trtllm_hpc.client.tensors import LLM_API_LENGTH

    body = {"text_input": prompt, "max_tokens": max_tokens, "bad_words": "", "stop_words": ""}
    if describe(endpoint, model, timeout_s).text.takes_sampling_params:
        body = {"text_input": prompt, LLM_API_LENGTH: max_tokens}
    started = time.monotonic()
    reply = call_json(endpoint, f"v2/models/{quote(model, safe='')}/generate", timeout_s, body)
    latency_s = time.monotonic() - started
    if not isinstance(reply, dict) or not isinstance(reply.get("text_output"), str):
        raise RequestFailed(f"Model {model!r} answered over HTTP without a 'text_output'.")
    length = reply.get("sequence_length")
    return Answer("http", reply["text_output"], latency_s, length if isinstance(length, int) else None)
