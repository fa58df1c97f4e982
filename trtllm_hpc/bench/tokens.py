"""Who counts the tokens, from the best source to the last resort."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.wire import output_tokens
from trtllm_hpc.client.ask import GRPC_OPTIONS
from trtllm_hpc.runtime.records import Endpoint

BY_MODEL = "model"
"""The asked model gave ``sequence_length`` with its answer."""
BY_REPLAY = "replay"
"""The core model was asked the same prompt after the measurement (decoding is greedy by default)."""
BY_REQUEST = "requested"
"""Nobody counted: the number that was asked for. Too high if the model stopped earlier."""


@dataclass(frozen=True)
class Counts:
    """Tokens of one prompt and of its answer."""

    input_tokens: int
    output_tokens: int


def with_tokens(
    records: Sequence[RequestRecord],
    replies: Sequence[bytes | None],
    prompts: Sequence[str],
    max_tokens: int,
    replayed: dict[str, Counts],
) -> list[RequestRecord]:
    """The records of finished requests with their token counts, and who counted."""
    counted = []
    for record, reply, prompt in zip(records, replies, prompts, strict=True):
        replay = replayed.get(prompt)
        record = replace(record, input_tokens=None if replay is None else replay.input_tokens)
        if reply is not None:
            told = output_tokens(reply)
            if told is not None:
                record = replace(record, output_tokens=told, tokens_by=BY_MODEL)
            elif replay is not None:
                record = replace(record, output_tokens=replay.output_tokens, tokens_by=BY_REPLAY)
            else:
                record = replace(record, output_tokens=max_tokens, tokens_by=BY_REQUEST)
        counted.append(record)
    return counted


def replay_counts(
    endpoint: Endpoint, prompts: Iterable[str], max_tokens: int, timeout_s: float
) -> dict[str, Counts]:
    """Ask ``preprocessing`` and ``tensorrt_llm`` once for each distinct prompt.

    Returns what could be counted; nothing if the repository has no such
    models, as with the LLM API.
    """
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    counts: dict[str, Counts] = {}
    client = InferenceServerClient(endpoint.grpc, channel_args=list(GRPC_OPTIONS))
    try:
        for prompt in dict.fromkeys(prompts):
            counts[prompt] = _replay(client, prompt, max_tokens, timeout_s)
    except InferenceServerException:
        return counts
    finally:
        client.close()
    return counts


def _replay(client: Any, prompt: str, max_tokens: int, timeout_s: float) -> Counts:
    asked = np.array([[max_tokens]], dtype=np.int32)
    empty = np.array([[b""]], dtype=np.object_)
    prepared = _infer(
        client,
        "preprocessing",
        {
            "QUERY": np.array([[prompt.encode()]], dtype=np.object_),
            "REQUEST_OUTPUT_LEN": asked,
            "BAD_WORDS_DICT": empty,
            "STOP_WORDS_DICT": empty,
        },
        timeout_s,
    )
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
    answer = _infer(client, "tensorrt_llm", inputs, timeout_s)
    length = int(_output(answer, "sequence_length").reshape(-1)[0])
    return Counts(ids.size, length - _echoed(ids, _output(answer, "output_ids")))


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


def _echoed(input_ids: Any, output_ids: Any) -> int:
    """Input tokens that the answer repeats: all, unless ``exclude_input_in_output`` is set."""
    given, out = input_ids.reshape(-1), output_ids.reshape(-1)
    return given.size if np.array_equal(out[: given.size], given) else 0
