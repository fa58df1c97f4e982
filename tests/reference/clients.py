"""Clients of the reference backend's models over gRPC streams, which serve decoupled models and others."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, triton_to_np_dtype

from tests.waiting import eventually
from trtllm_hpc.gateway.tokenizer import ModelTokenizer

from . import servers
from .servers import MAX_BATCH_SIZE, World

MAX_SEQ_LEN = 512
LONG = MAX_SEQ_LEN - 8
"""Tokens of an answer during which something may happen: half a second."""

ACCUMULATES = {"ensemble": False, "tensorrt_llm_bls": True}
"""The models that take text, and whether a streamed text is that of all tokens so far."""

Answer = Any
"""A ``tritonclient.grpc.InferResult``, or the exception that came in its place."""

STOP = {"input_ids": [[0]], "input_lengths": 0, "request_output_len": 0, "stop": True}
"""What TensorRT-LLM's client sends to stop a request."""


def tensors(values: Mapping[str, Any]) -> list[triton.InferInput]:
    """Inputs by name; a lone value becomes [[value]], and an array is sent as it is."""
    return [_tensor(name, value) for name, value in values.items()]


def _tensor(name: str, values: Any) -> triton.InferInput:
    array = values if isinstance(values, np.ndarray) else _array(name, values)
    item = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    item.set_data_from_numpy(array)
    return item


def _array(name: str, values: Any) -> np.ndarray[Any, Any]:
    kind = next(form.type for key, form in servers.tensors().items() if key[1:] == ("input", name))
    array = np.array(values, dtype=np.object_ if kind == "STRING" else triton_to_np_dtype(kind))
    array = array.reshape(1, 1) if array.ndim == 0 else array
    return np.vectorize(str.encode, otypes=[np.object_])(array) if kind == "STRING" else array


def token_inputs(prompt: list[int], count: int, **values: Any) -> dict[str, Any]:
    """Inputs of ``tensorrt_llm`` for one prompt; every other input is a keyword."""
    return {"input_ids": [prompt], "input_lengths": len(prompt), "request_output_len": count, **values}


class Stream:
    """One gRPC stream, and what came back on it."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        client.start_stream(lambda result, error: self._answers.put(error or result), stream_timeout=60)

    def send(self, model: str, values: Mapping[str, Any], request_id: str = "", **options: Any) -> None:
        self._client.async_stream_infer(model, tensors(values), request_id=request_id, **options)

    def next(self, timeout_s: float = 30.0) -> Answer:
        """The next answer, or the error that came in its place."""
        return self._answers.get(timeout=timeout_s)

    def rest(self) -> list[Answer]:
        """End the stream in order and return all answers that were not taken yet."""
        self._client.stop_stream()
        answers = []
        while not self._answers.empty():
            answers.append(self._answers.get())
        return answers

    def cancel(self) -> None:
        """Go away without waiting for an answer."""
        self._client.stop_stream(cancel_requests=True)


def connect(world: World) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(f"127.0.0.1:{world.grpc_port}")


@contextmanager
def stream(world: World) -> Iterator[Stream]:
    with connect(world) as client:
        yield Stream(client)


def ask(world: World, model: str, values: Mapping[str, Any], **options: Any) -> list[Answer]:
    """All answers to one request."""
    with stream(world) as opened:
        opened.send(model, values, **options)
        return opened.rest()


def ask_one(world: World, model: str, values: Mapping[str, Any], **options: Any) -> Answer:
    """The only answer to one request."""
    (answer,) = ask(world, model, values, **options)
    if isinstance(answer, InferenceServerException):
        raise answer
    return answer


def tokens(answer: Answer) -> list[int]:
    """The tokens of an answer's first beam."""
    found: list[int] = answer.as_numpy("output_ids")[0, 0].tolist()
    return found


def are_of_tokens(
    texts: list[str], answer: list[int], tokenizer: ModelTokenizer, *, accumulates: bool
) -> bool:
    """Whether the texts of a stream are those of an answer's tokens, in order and none left out.

    A response has one token, or more if the server was behind.
    """
    ends = {0}
    for text in texts:
        ends = {
            end
            for begin in ends
            for end in range(begin + 1, len(answer) + 1)
            if tokenizer.decode(answer[0 if accumulates else begin : end]) == text
        }
    return len(answer) in ends


def metric(world: World, name: str, label: str) -> float:
    """The value of a metric of the model ``tensorrt_llm`` with a label of that value."""
    for line in world.metrics().splitlines():
        if line.startswith(name + "{") and f'="{label}"' in line:
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"there is no {name} with {label}")


def wait_until(holds: Callable[[], bool], limit_s: float = 60.0) -> None:
    assert eventually(holds, limit_s), f"not so within {limit_s} s"


def steps(world: World) -> float:
    """The engine's steps so far: each makes a token for each request that it works on."""
    return metric(world, "nv_trt_llm_general_metrics", "iteration_counter")


def wait_idle(world: World, limit_s: float = 60.0) -> None:
    """Wait until the engine has no request and every block of its KV cache is free."""
    wait_until(
        lambda: (
            metric(world, "nv_trt_llm_request_metrics", "active") == 0
            and metric(world, "nv_trt_llm_kv_cache_block_metrics", "used") == 0
        ),
        limit_s,
    )


def ends_when_left(world: World, model: str, values: Mapping[str, Any], tokens: int) -> bool:
    """Whether requests for so many tokens end sooner when their client goes away; their places are free then.

    A single one would be over before the server has looked.
    """
    batches = 4
    wait_idle(world)
    before = steps(world)
    with stream(world) as opened:
        for _ in range(batches * MAX_BATCH_SIZE):
            opened.send(model, values)
        wait_until(lambda: steps(world) > before)
        opened.cancel()
    wait_idle(world)
    return steps(world) - before < batches * tokens
