"""The server's tokenizer: its model ``preprocessing``, asked over gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trtllm_hpc.bench.tokens.sources import BY_PREPROCESSING
from trtllm_hpc.client.ask import GRPC_OPTIONS
from trtllm_hpc.client.http import call_json
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.runtime.records import Endpoint

MODEL = "preprocessing"


class ServedTokenizer:
    """Cuts texts by asking the server, for clients that cannot read the model's folder.

    Args:
        timeout_s: for each request.

    Raises:
        RequestFailed: the server has no such model, or does not answer.
    """

    counted_by = BY_PREPROCESSING

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self.name = f"{MODEL} at {endpoint.grpc}"
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        config = call_json(endpoint, f"v2/models/{MODEL}/config", timeout_s)
        self._shape = (1, 1) if config.get("max_batch_size") else (1,)
        self._needs = {tensor["name"] for tensor in config["input"] if not tensor.get("optional")}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text; one request each, as models of other makes take but one.

        Raises:
            RequestFailed: with the server's own words.
        """
        from tritonclient.grpc import InferenceServerClient
        from tritonclient.utils import InferenceServerException

        client = InferenceServerClient(self._endpoint.grpc, channel_args=list(GRPC_OPTIONS))
        try:
            return [self._ask(client, text) for text in texts]
        except InferenceServerException as error:
            words = error.message() or error.status()
            raise RequestFailed(f"Model {MODEL!r} at {self._endpoint.grpc} failed: {words}") from error
        finally:
            client.close()

    def _ask(self, client: Any, text: str) -> list[int]:
        from tritonclient.grpc import InferInput
        from tritonclient.utils import np_to_triton_dtype

        tensors = []
        for name, array in self._arrays(text).items():
            tensor = InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
            tensors.append(tensor.set_data_from_numpy(array))
        answer = client.infer(MODEL, tensors, client_timeout=self._timeout_s)
        ids, lengths = answer.as_numpy("INPUT_ID"), answer.as_numpy("REQUEST_INPUT_LEN")
        if ids is None or lengths is None:
            raise RequestFailed(f"Model {MODEL!r} answered without INPUT_ID or REQUEST_INPUT_LEN.")
        found: list[int] = ids.reshape(-1)[: int(lengths.reshape(-1)[0])].tolist()
        return found

    def _arrays(self, text: str) -> dict[str, Any]:
        """The inputs, with those that words are read from only where they cannot be left out."""
        query = text.encode("utf-8", errors="replace")
        arrays = {
            "QUERY": np.array([query], dtype=np.object_).reshape(self._shape),
            "REQUEST_OUTPUT_LEN": np.ones(self._shape, dtype=np.int32),
        }
        for name in self._needs - set(arrays):
            arrays[name] = np.array([b""], dtype=np.object_).reshape(self._shape)
        return arrays
