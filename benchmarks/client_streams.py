"""The Python client beside tritonclient's own: 200 streams at once in one asyncio process.

``python -m benchmarks.client_streams [--rounds 5] [--streams 200] [--tokens 100]``

A real tritonserver answers each request with a text of many responses, as fast
as it can. Both clients read all streams over one connection, in a process of
their own and in turn. What is told are the medians of CPU time, of the process's
largest memory, and of the time until the last stream has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.arguments import number
from benchmarks.triton import running_triton
from trtllm_hpc.runtime.records import Endpoint

MODEL = "ensemble"
_CONFIG = """backend: "python"
max_batch_size: 64
model_transaction_policy { decoupled: true }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "bad_words" data_type: TYPE_STRING dims: [ -1 ] optional: true },
  { name: "stop_words" data_type: TYPE_STRING dims: [ -1 ] optional: true }
]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
_CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = pb_utils.get_input_tensor_by_name(request, "max_tokens").as_numpy().item()
            word = pb_utils.Tensor("text_output", np.array([[b" word"]], dtype=np.object_))
            for _ in range(count):
                sender.send(pb_utils.InferenceResponse([word]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@dataclass(frozen=True)
class Cost:
    """What reading all streams took."""

    wall_s: float
    cpu_s: float
    memory_mib: float
    responses: int


async def read_ours(endpoint: Endpoint, streams: int, tokens: int) -> int:
    """Read with :class:`AsyncClient`; returns the number of words."""
    from trtllm_hpc.client.async_client import AsyncClient

    async def one(client: AsyncClient, number: int) -> int:
        found = 0
        async with aclosing(client.stream(f"prompt {number}", max_tokens=tokens)) as parts:
            async for part in parts:
                found += part.count("word")
        return found

    async with AsyncClient(endpoint) as client:
        return sum(await asyncio.gather(*(one(client, number) for number in range(streams))))


async def read_theirs(endpoint: Endpoint, streams: int, tokens: int) -> int:
    """Read with ``tritonclient.grpc.aio``; returns the number of words."""
    import numpy as np
    from tritonclient.grpc import InferInput
    from tritonclient.grpc.aio import InferenceServerClient

    def tensor(name: str, datatype: str, value: Any) -> InferInput:
        made = InferInput(name, [1, 1], datatype)
        made.set_data_from_numpy(np.array([[value]], dtype=object if datatype == "BYTES" else np.int32))
        return made

    async def one(client: InferenceServerClient, number: int) -> int:
        async def requests() -> AsyncIterator[dict[str, Any]]:
            text = tensor("text_input", "BYTES", f"prompt {number}".encode())
            yield {"model_name": MODEL, "inputs": [text, tensor("max_tokens", "INT32", tokens)]}

        found = 0
        async for result, error in client.stream_infer(requests()):
            if error is not None:
                raise error
            found += result.as_numpy("text_output").item().count(b"word")
        return found

    async with InferenceServerClient(endpoint.grpc) as client:
        return sum(await asyncio.gather(*(one(client, number) for number in range(streams))))


CONTENDERS = {"ours": read_ours, "tritonclient": read_theirs}


def contend(name: str, endpoint: Endpoint, streams: int, tokens: int) -> Cost:
    """Read all streams once in this process."""
    asyncio.run(CONTENDERS[name](endpoint, 2, 2))  # imports and the first connection do not count
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    responses = asyncio.run(CONTENDERS[name](endpoint, streams, tokens))
    wall_s, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall_s, cpu_s, after.ru_maxrss / 1024, responses)


def _in_a_process(name: str, endpoint: Endpoint, arguments: argparse.Namespace) -> Cost:
    words = ["--contend", name, "--endpoint", json.dumps(asdict(endpoint))]
    sizes = ["--streams", str(arguments.streams), "--tokens", str(arguments.tokens)]
    command = [sys.executable, "-m", "benchmarks.client_streams", *words, *sizes]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    cost = Cost(**json.loads(said))
    expected = arguments.streams * arguments.tokens
    if cost.responses != expected:
        raise SystemExit(f"{name} read {cost.responses} of {expected} words.")
    return cost


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=number, default=5)
    parser.add_argument("--streams", type=number, default=200)
    parser.add_argument("--tokens", type=number, default=100)
    parser.add_argument("--contend", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--endpoint", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contend:
        endpoint = Endpoint(**json.loads(arguments.endpoint))
        cost = contend(arguments.contend, endpoint, arguments.streams, arguments.tokens)
        print(json.dumps(asdict(cost)))
        return
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "repository" / MODEL / "1"
        model.mkdir(parents=True)
        (model / "model.py").write_text(_CODE, encoding="utf-8")
        (model.parent / "config.pbtxt").write_text(f'name: "{MODEL}"\n{_CONFIG}', encoding="utf-8")
        costs: dict[str, list[Cost]] = {name: [] for name in CONTENDERS}
        with running_triton(Path(folder), [MODEL]) as endpoint:
            for turn in range(arguments.rounds):
                for name in list(CONTENDERS) if turn % 2 else reversed(CONTENDERS):
                    costs[name].append(_in_a_process(name, endpoint, arguments))
    for figure in ("cpu_s", "memory_mib", "wall_s"):
        medians = {name: median(getattr(cost, figure) for cost in found) for name, found in costs.items()}
        ours, theirs = medians["ours"], medians["tritonclient"]
        print(f"{figure}: ours {ours:.2f}, tritonclient {theirs:.2f}, ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
