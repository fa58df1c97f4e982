"""Asking the core model the same prompts again, to know how long its answers were.

For text models that tell no lengths and do not stream. It holds for greedy
decoding, the default: then the same prompt gets the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.bench.workload.served_tokenizer import MODEL as PREPROCESSING
from trtllm_hpc.client.ask import GRPC_OPTIONS
from trtllm_hpc.runtime.records import Endpoint

CORE = "tensorrt_llm"
MOST = 64
"""Different prompts; more would ask the server for longer than the measurement did."""


def replay(
    endpoint: Endpoint, requests: Sequence[Request], timeout_s: float, *, most: int = MOST
) -> dict[tuple[str, int], int]:
    """Output tokens by prompt and tokens asked for.

    Args:
        most: different questions; with more than these none is asked.

    Returns:
        What could be counted; nothing if the repository has no such models, or
        if the core model only answers in streams.
    """
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    questions = {(request.prompt, request.max_tokens) for request in requests if request.prompt is not None}
    if len(questions) > most:
        return {}
    counts: dict[tuple[str, int], int] = {}
    client = InferenceServerClient(endpoint.grpc, channel_args=list(GRPC_OPTIONS))
    try:
        for prompt, max_tokens in sorted(questions):
            counts[prompt, max_tokens] = _answered(client, prompt, max_tokens, timeout_s)
    except InferenceServerException:
        return counts
    finally:
        client.close()
    return counts


def _answered(client: Any, prompt: str, max_tokens: int, timeout_s: float) -> int:
    asked = np.array([[max_tokens]], dtype=np.int32)
    empty = np.array([[b""]], dtype=np.object_)
    texts = {
        "QUERY": np.array([[prompt.encode("utf-8", errors="replace")]], dtype=np.object_),
        "REQUEST_OUTPUT_LEN": asked,
        "BAD_WORDS_DICT": empty,
        "STOP_WORDS_DICT": empty,
    }
    prepared = _infer(client, PREPROCESSING, texts, timeout_s)
    ids = _output(prepared, "INPUT_ID")
    inputs = {
        "input_ids": ids,
        "input_lengths": _output(prepared, "REQUEST_INPUT_LEN"),
        "request_output_len": asked,
    }
    for core, given in (("end_id", "OUT_END_ID"), ("pad_id", "OUT_PAD_ID")):
        value = prepared.as_numpy(given)
        if value is not None:
            inputs[core] = value
    answer = _infer(client, CORE, inputs, timeout_s)
    length = int(_output(answer, "sequence_length").reshape(-1)[0])
    return length - _repeated(ids.reshape(-1), _output(answer, "output_ids").reshape(-1))


def _infer(client: Any, model: str, arrays: dict[str, Any], timeout_s: float) -> Any:
    from tritonclient.grpc import InferInput
    from tritonclient.utils import np_to_triton_dtype

    inputs = [
        InferInput(name, array.shape, np_to_triton_dtype(array.dtype)).set_data_from_numpy(array)
        for name, array in arrays.items()
    ]
    return client.infer(model, inputs, client_timeout=timeout_s)


def _output(result: Any, name: str) -> Any:
    from tritonclient.utils import InferenceServerException

    output = result.as_numpy(name)
    if output is None:
        raise InferenceServerException(f"no output {name!r}: a model of another make")
    return output


def _repeated(given: Any, answered: Any) -> int:
    """Input tokens that the answer repeats: all, unless ``exclude_input_in_output`` is set."""
    return len(given) if np.array_equal(answered[: len(given)], given) else 0
