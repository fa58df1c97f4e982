"""Connections to a server over gRPC, with the key and the certificate of its door."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trtllm_hpc.runtime.records import Endpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
