"""Connections to a server over gRPC, with the key and the certificate of its door."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtllm_hpc.errors import AnswerTimedOut, RequestFailed, ServerUnreachable
from trtllm_hpc.runtime.records import Endpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _KeyPlugin:
    """Adds headers to every call of Triton's client, which calls it by the interface of its plugins."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    def __call__(self, request: Any) -> None:
        """Add them to the headers of a call."""
        request.headers.update(self._headers)


def channel_options(endpoint: Endpoint) -> list[tuple[str, int | str]]:
    """Return the options of gRPC for an endpoint."""
    options: list[tuple[str, int | str]] = [
        # A proxy for the outside world cannot reach compute nodes; see http.py.
        ("grpc.enable_http_proxy", 0),
        # gRPC's own limit is 4 MiB: logits and long texts are larger.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
    ]
    if endpoint.certificate_name is not None:
        options.append(("grpc.ssl_target_name_override", endpoint.certificate_name))
    return options


def async_channel(endpoint: Endpoint) -> Any:
    """Return a channel of gRPC for asyncio; Triton's own client for it cannot ask for empty last responses.

    Raises RequestFailed if the certificate cannot be read.
    """
    import grpc  # type: ignore[import-untyped]

    options = channel_options(endpoint)
    if endpoint.certificate_file is None:
        return grpc.aio.insecure_channel(endpoint.grpc, options=options)
    try:
        trusted = Path(endpoint.certificate_file).read_bytes()
    except OSError as error:
        sentence = f"The certificate {endpoint.certificate_file} cannot be read: {error.strerror}."
        raise RequestFailed(sentence) from None
    credentials = grpc.ssl_channel_credentials(root_certificates=trusted)
    return grpc.aio.secure_channel(endpoint.grpc, credentials, options=options)


@contextmanager
def grpc_client(endpoint: Endpoint) -> Iterator[Any]:
    """Yield a Triton client that is closed in any case: an open one keeps Python from exiting."""
    from tritonclient.grpc import InferenceServerClient

    client = InferenceServerClient(
        endpoint.grpc,
        ssl=endpoint.certificate_file is not None,
        root_certificates=endpoint.certificate_file,
        channel_args=channel_options(endpoint),
    )
    client.register_plugin(_KeyPlugin(endpoint.authorization))
    try:
        yield client
    finally:
        client.close()


def infer_request(model: str, arrays: Mapping[str, NDArray[Any]], request_id: str = "") -> Any:
    """Return a ``ModelInferRequest`` of Triton's gRPC service."""
    from tritonclient.grpc import service_pb2
    from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name, array in arrays.items():
        datatype = np_to_triton_dtype(array.dtype)
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        raw = serialize_byte_tensor(array).item() if datatype == "BYTES" else array.tobytes()
        request.raw_input_contents.append(raw)
    return request


def infer_inputs(arrays: Mapping[str, NDArray[Any]]) -> list[Any]:
    """Return the arrays as inputs of Triton's gRPC client."""
    from tritonclient.grpc import InferInput
    from tritonclient.utils import np_to_triton_dtype

    return [
        InferInput(name, array.shape, np_to_triton_dtype(array.dtype)).set_data_from_numpy(array)
        for name, array in arrays.items()
    ]


def grpc_error(error: Any, endpoint: Endpoint, model: str) -> str:
    """Return a sentence with the message of an ``InferenceServerException``."""
    return f"Model {model!r} at {endpoint.grpc} (gRPC) failed: {error.message() or error.status()}"


def unanswered(error: Any, endpoint: Endpoint, timeout_s: float) -> RequestFailed:
    """Return what an ``InferenceServerException`` of a call without a model's work means."""
    message = error.message() or str(error.status())
    if error.status() == "StatusCode.UNAVAILABLE":
        return ServerUnreachable(f"{endpoint.grpc} (gRPC) cannot be reached: {message}")
    if error.status() == "StatusCode.DEADLINE_EXCEEDED":
        return AnswerTimedOut(f"{endpoint.grpc} (gRPC) did not answer within {timeout_s:g} s.")
    return RequestFailed(f"{endpoint.grpc} (gRPC) failed: {message}")
