"""The server's tokenizer: its model ``preprocessing``, asked over gRPC."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from trtllm_hpc.bench.sources import BY_PREPROCESSING
from trtllm_hpc.client.ask import GRPC_OPTIONS
from trtllm_hpc.client.http import call_json
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.runtime.records import Endpoint

MODEL = "preprocessing"

_AT_ONCE = 32
"""Texts of one request, where the model allows so many."""


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
        self._batch = min(int(config.get("max_batch_size", 0)), _AT_ONCE)
        self._needs = {tensor["name"] for tensor in config["input"] if not tensor.get("optional")}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text.

        Raises:
            RequestFailed: with the server's own words.
        """
        from tritonclient.grpc import InferenceServerClient
        from tritonclient.utils import InferenceServerException

        client = InferenceServerClient(self._endpoint.grpc, channel_args=list(GRPC_OPTIONS))
        at_once = max(1, self._batch)
        try:
            batches = (texts[begin : begin + at_once] for begin in range(0, len(texts), at_once))
            return [ids for batch in batches for ids in self._ask(client, batch)]
        except InferenceServerException as error:
            words = error.message() or error.status()
            raise RequestFailed(f"Model {MODEL!r} at {self._endpoint.grpc} failed: {words}") from error
        finally:
            client.close()

    def _ask(self, client: Any, texts: Sequence[str]) -> Iterator[list[int]]:
        from tritonclient.grpc import InferInput
        from tritonclient.utils import np_to_triton_dtype

        tensors = []
        for name, array in self._arrays(texts).items():
            tensor = InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
            tensors.append(tensor.set_data_from_numpy(array))
        answer = client.infer(MODEL, tensors, client_timeout=self._timeout_s)
        ids, lengths = answer.as_numpy("INPUT_ID"), answer.as_numpy("REQUEST_INPUT_LEN")
        if ids is None or lengths is None:
            raise RequestFailed(f"Model {MODEL!r} answered without INPUT_ID or REQUEST_INPUT_LEN.")
        for row, length in zip(ids.reshape(len(texts), -1), lengths.reshape(-1), strict=True):
            yield row[: int(length)].tolist()

    def _arrays(self, texts: Sequence[str]) -> dict[str, Any]:
        """The inputs: one row a text. Of those that words are read from, the ones that cannot be left out."""
        shape = (len(texts), 1) if self._batch else (1,)
        encoded = [text.encode("utf-8", errors="replace") for text in texts]
        arrays = {
            "QUERY": np.array(encoded, dtype=np.object_).reshape(shape),
            "REQUEST_OUTPUT_LEN": np.ones(shape, dtype=np.int32),
        }
        for name in self._needs - set(arrays):
            arrays[name] = np.full(shape, b"", dtype=np.object_)
        return arrays
