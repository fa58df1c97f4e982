"""The reference backend behind the real Triton server; this process is its client.

Requests go over one gRPC stream to the model ``tensorrt_llm``, which serves
decoupled models and others alike, and are not streamed back.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

from benchmarks.reference.workload import ANSWER_LIMIT_S, Measure, Outcome, Run, Setup, closed_loop, inputs
from tests.reference import servers


@contextmanager
def contend(setup: Setup, mode: str) -> Iterator[Measure]:
    """Start the servers and open the stream."""
    folder = setup.folder / "triton"
    ranks = setup.tensor_parallel
    repository = servers.write_repository(
        folder / "repository", setup.engine(ranks), decoupled=setup.decoupled
    )
    with (
        servers.start(folder / "run", repository, ranks) as world,
        triton.InferenceServerClient(f"127.0.0.1:{world.grpc_port}") as client,
    ):
        answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        try:
            yield lambda run: _measure(setup, client, answers, run)
        finally:
            # A client that does not end its stream never exits.
            client.stop_stream()


def _measure(setup: Setup, client: Any, answers: queue.SimpleQueue[tuple[Any, Any]], run: Run) -> Outcome:
    # Made before the clock starts: what a client does with NumPy is not the server's speed.
    prepared = [_tensors(setup, index, run.features) for index in range(run.requests)]
    outputs = [triton.InferRequestedOutput(name) for name in ("output_ids", "sequence_length")]

    def send(index: int) -> None:
        client.async_stream_infer("tensorrt_llm", prepared[index], outputs=outputs, request_id=str(index))

    def receive() -> tuple[int, Any]:
        result, error = answers.get(timeout=ANSWER_LIMIT_S)
        return (-1, error) if error else (int(result.get_response().id), result)

    seconds, cpu, results = closed_loop(run, send, receive)
    return Outcome(seconds, [result.as_numpy("output_ids")[0, 0].tolist() for result in results], cpu)


def _tensors(setup: Setup, index: int, features: bool) -> list[Any]:
    tensors = []
    for name, array in inputs(setup, index, features).items():
        tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors
