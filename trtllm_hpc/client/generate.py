"""One request to a served model, over gRPC or HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from trtllm_hpc.client.http import call_json
from trtllm_hpc.client.served_model import (
    LENGTH_OUTPUT,
    LLM_API_LENGTH,
    TEXT_OUTPUT,
    describe,
    first_text,
    logits_inputs,
    text_inputs,
)
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.runtime.records import Endpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Answer:
    """The model's answer, and how long it took."""

    protocol: str
    """``grpc`` or ``http``."""
    text: str
    latency_s: float
    """From the call to the whole answer, connection included."""
    output_tokens: int | None = None
    """As counted by the server; ``None`` if it does not report them."""
    logits: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """The requested ones, by output: ``context_logits`` of shape [1, prompt, vocabulary],
    ``generation_logits`` of shape [1, beams, answer, vocabulary]."""

    def as_json(self) -> dict[str, Any]:
        """Return the answer as plain JSON types; of logits only the shapes."""
        record = {name: value for name, value in vars(self).items() if name != "logits"}
        shapes = {name: list(array.shape) for name, array in self.logits.items()}
        return {**record, "logits": shapes} if shapes else record


def generate_grpc(
    endpoint: Endpoint,
    prompt: str,
    max_tokens: int,
    timeout_s: float,
    model: str = "ensemble",
    logits: Sequence[str] = (),
) -> Answer:
    """Send one prompt to Triton's gRPC endpoint.

    It uses the streaming call, which decoupled models need and all others take.

    Args:
        logits: outputs to request, ``context_logits`` and ``generation_logits``.

    Raises:
        RequestFailed: with the server's error message.
    """
    arrays = text_inputs(prompt, max_tokens, describe(endpoint, model, timeout_s).text)
    inputs = infer_inputs({**arrays, **logits_inputs(logits)})
    started = time.monotonic()
    with grpc_client(endpoint) as client:
        responses = _stream(client, endpoint, model, inputs, timeout_s)
    latency_s = time.monotonic() - started
    outputs = [response.as_numpy(TEXT_OUTPUT) for response in responses]
    texts = [first_text(output) for output in outputs if output is not None and output.size]
    if not texts:
        raise RequestFailed(f"Model {model!r} answered over gRPC without a {TEXT_OUTPUT!r} output.")
    lengths = [length for it in responses if (length := it.as_numpy(LENGTH_OUTPUT)) is not None]
    tokens = int(lengths[-1].reshape(-1)[0]) if lengths else None
    return Answer("grpc", "".join(texts), latency_s, tokens, _logits(responses, logits, model))


def infer_inputs(arrays: Mapping[str, NDArray[Any]]) -> list[Any]:
    """Return the arrays as inputs of Triton's gRPC client."""
    from tritonclient.grpc import InferInput
    from tritonclient.utils import np_to_triton_dtype

    return [
        InferInput(name, array.shape, np_to_triton_dtype(array.dtype)).set_data_from_numpy(array)
        for name, array in arrays.items()
    ]


class _KeyPlugin:
    """Adds headers to every call of Triton's client, which calls it by the interface of its plugins."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    def __call__(self, request: Any) -> None:
        request.headers.update(self._headers)


@contextmanager
def grpc_client(endpoint: Endpoint) -> Iterator[Any]:
    """Yield a Triton client that is closed in any case: an open one keeps Python from exiting."""
    from tritonclient.grpc import InferenceServerClient

    # A proxy for the outside world cannot reach compute nodes; see http.py.
    options: list[tuple[str, int | str]] = [("grpc.enable_http_proxy", 0)]
    if endpoint.certificate_name is not None:
        options.append(("grpc.ssl_target_name_override", endpoint.certificate_name))
    client = InferenceServerClient(
        endpoint.grpc,
        ssl=endpoint.certificate_file is not None,
        root_certificates=endpoint.certificate_file,
        channel_args=options,
    )
    client.register_plugin(_KeyPlugin(endpoint.authorization))
    try:
        yield client
    finally:
        client.close()


def _logits(responses: list[Any], names: Sequence[str], model: str) -> dict[str, NDArray[Any]]:
    """The last array of each output; the answer comes in one response unless it is streamed."""
    found = {}
    for name in names:
        arrays = [array for response in responses if (array := response.as_numpy(name)) is not None]
        if not arrays:
            raise RequestFailed(f"Model {model!r} answered over gRPC without {name}.")
        found[name] = arrays[-1]
    return found


def _stream(client: Any, endpoint: Endpoint, model: str, inputs: list[Any], timeout_s: float) -> list[Any]:
    """All responses to one request, in order."""
    from tritonclient.utils import InferenceServerException

    arrived: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
    deadline = time.monotonic() + timeout_s
    responses: list[Any] = []
    is_answered = False
    try:
        client.start_stream(lambda result, error: arrived.put((result, error)), stream_timeout=timeout_s)
        # The last response may be empty; Triton only sends it if asked, and it alone marks the end.
        client.async_stream_infer(model, inputs, enable_empty_final_response=True)
        while not is_answered:
            result, error = arrived.get(timeout=max(0.0, deadline - time.monotonic()))
            if error is not None:
                is_answered = True
                raise error
            responses.append(result)
            is_answered = result.get_response().parameters["triton_final_response"].bool_param
        return responses
    except Empty:
        raise RequestFailed(
            f"Model {model!r} at {endpoint.grpc} did not answer within {timeout_s:g} s."
        ) from None
    except InferenceServerException as error:
        raise RequestFailed(grpc_error(error, endpoint, model)) from error
    finally:
        # Triton 2.51 loses a call that is cancelled just as it ends, and cannot stop for 30 s then.
        client.stop_stream(cancel_requests=not is_answered)


def grpc_error(error: Any, endpoint: Endpoint, model: str) -> str:
    """Return a sentence with the message of an ``InferenceServerException``."""
    return f"Model {model!r} at {endpoint.grpc} (gRPC) failed: {error.message() or error.status()}"


def generate_http(
    endpoint: Endpoint, prompt: str, max_tokens: int, timeout_s: float, model: str = "ensemble"
) -> Answer:
    """Send one prompt to Triton's HTTP ``generate`` extension.

    Raises:
        RequestFailed: with the server's error message.
    """
    body = {"text_input": prompt, "max_tokens": max_tokens, "bad_words": "", "stop_words": ""}
    if describe(endpoint, model, timeout_s).text.takes_sampling_params:
        body = {"text_input": prompt, LLM_API_LENGTH: max_tokens}
    started = time.monotonic()
    reply = call_json(endpoint, f"v2/models/{quote(model, safe='')}/generate", timeout_s, body)
    latency_s = time.monotonic() - started
    if not isinstance(reply, dict) or not isinstance(reply.get(TEXT_OUTPUT), str):
        raise RequestFailed(f"Model {model!r} answered over HTTP without a {TEXT_OUTPUT!r} output.")
    length = reply.get(LENGTH_OUTPUT)
    return Answer("http", reply[TEXT_OUTPUT], latency_s, length if isinstance(length, int) else None)
