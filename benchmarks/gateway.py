"""The gateway beside direct gRPC streaming: added TTFT, and tokens/s that one core carries.

``python -m benchmarks.gateway [--rounds 5] [--streams 64] [--tokens 200] [--firsts 200]``

A real tritonserver has a model with the inputs and outputs of TensorRT-LLM's
``tensorrt_llm`` that sends one token in each response, as fast as it can. The
same requests go straight to it over gRPC (with the project's own client) and
through the gateway, in turn. What one core carries are the tokens for each
second of CPU time: of the gateway's process, or of the process that reads over
gRPC. Both hardly depend on what else the machine does; what reads the
gateway's answers is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from benchmarks.arguments import number
from benchmarks.triton import running_triton
from trtllm_hpc.client.async_client import AsyncClient
from trtllm_hpc.client.request import Request
from trtllm_hpc.client.single_calls import call_json
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.gateway.tokenizer import ModelTokenizer
from trtllm_hpc.reference.synthetic import make_tokenizer
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.records import Endpoint

MODEL = "tensorrt_llm"
PROMPT = "The quick brown fox jumps over the lazy dog. " * 12
_START_LIMIT_S = 30.0
_CONFIG = """backend: "python"
max_batch_size: 64
model_transaction_policy { decoupled: true }
input [
  { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "end_id" data_type: TYPE_INT32 dims: [ 1 ] optional: true },
  { name: "pad_id" data_type: TYPE_INT32 dims: [ 1 ] optional: true },
  { name: "runtime_top_k" data_type: TYPE_INT32 dims: [ 1 ] optional: true },
  { name: "exclude_input_in_output" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "streaming" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [
  { name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] },
  { name: "sequence_length" data_type: TYPE_INT32 dims: [ -1 ] }
]
"""
_CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        length = pb_utils.Tensor("sequence_length", np.ones((1, 1), np.int32))
        tokens = [pb_utils.Tensor("output_ids", np.full((1, 1, 1), 300 + i, np.int32)) for i in range(32)]
        responses = [pb_utils.InferenceResponse([token, length]) for token in tokens]
        open_requests = [
            (
                request.get_response_sender(),
                pb_utils.get_input_tensor_by_name(request, "request_output_len").as_numpy().item(),
            )
            for request in requests
        ]
        for at in range(max(count for _, count in open_requests)):
            for sender, count in open_requests:
                if at < count:
                    sender.send(responses[at % 32])
        for sender, _ in open_requests:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


class Direct:
    """Reads over gRPC."""

    def __init__(self, endpoint: Endpoint, ids: list[int]) -> None:
        self._client = AsyncClient(endpoint, MODEL)
        self._ids = ids

    async def __aenter__(self) -> Direct:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._client.__aexit__(*error)

    async def tokens(self, count: int) -> AsyncIterator[int]:
        """Yield the number of tokens so far."""
        options = {"max_tokens": count, "top_k": 1, "end_id": 2, "pad_id": 2, "exclude_input": True}
        async with aclosing(self._client.replies(Request((self._ids,), options, stream=True))) as replies:
            async for reply in replies:
                if reply.beams:
                    yield len(reply.beams[0].ids)

    def cpu_s(self) -> float:
        """CPU time of this process, which reads."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime


class Through:
    """Reads from the gateway."""

    def __init__(self, url: str, process: int) -> None:
        self._url, self._process = url, process
        self._session: Any = None

    async def __aenter__(self) -> Through:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._session.close()

    async def tokens(self, count: int) -> AsyncIterator[int]:
        """Yield the number of chunks so far: one for each token."""
        body = {"model": "model", "prompt": PROMPT, "max_tokens": count, "temperature": 0, "stream": True}
        found = 0
        async with self._session.post(f"{self._url}/v1/completions", json=body) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    found += 1
                    yield found

    def cpu_s(self) -> float:
        """CPU time of the gateway's process."""
        fields = Path(f"/proc/{self._process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


Way = Direct | Through


async def first_ms(way: Way) -> float:
    """Time to the first token of one stream, with nothing beside it."""
    began = time.perf_counter()
    found = 0.0
    async for _ in way.tokens(4):
        found = found or (time.perf_counter() - began) * 1000
    return found


async def tokens_per_cpu_s(way: Way, streams: int, tokens: int) -> float:
    """Tokens of many streams at once for each second of CPU time."""

    async def one() -> int:
        return max([found async for found in way.tokens(tokens)])

    before = way.cpu_s()
    counts = await asyncio.gather(*(one() for _ in range(streams)))
    used = way.cpu_s() - before
    if min(counts) < tokens:
        raise SystemExit(f"A stream had {min(counts)} of {tokens} tokens.")
    return streams * tokens / used


async def measure(direct: Direct, through: Through, arguments: argparse.Namespace) -> None:
    """Measure both in turn, and print."""
    async with direct, through:
        ways: dict[str, Way] = {"direct": direct, "gateway": through}
        firsts: dict[str, list[float]] = {name: [] for name in ways}
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for way in ways.values():
            await tokens_per_cpu_s(way, 4, 50)  # imports and first connections do not count
        for _ in range(arguments.firsts):
            for name, way in ways.items():
                firsts[name].append(await first_ms(way))
        for _ in range(arguments.rounds):
            for name, way in ways.items():
                rates[name].append(await tokens_per_cpu_s(way, arguments.streams, arguments.tokens))
    for name, found in firsts.items():
        ordered = sorted(found)
        high = ordered[int(len(ordered) * 0.95)]
        print(f"first token, {name}: median {median(found):.2f} ms, 95th percentile {high:.2f} ms")
    print(f"first token, added: {median(firsts['gateway']) - median(firsts['direct']):.2f} ms")
    for name, found in rates.items():
        print(f"tokens/s of one core, {name}: {median(found):,.0f}")


@contextmanager
def running_gateway(endpoint: Endpoint, tokenizer: Path) -> Iterator[Through]:
    """Start the gateway and yield what reads from it."""
    [port] = free_ports(1)
    target = ["--url", f"grpc://{endpoint.grpc}", "--tokenizer", str(tokenizer), "--name", "model"]
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "trtllm_hpc", "gateway", *target, "--port", str(port)])
    here = Endpoint("", "here", "127.0.0.1", port, port, 0, [], 0.0)
    try:
        while not _answers(here):
            if time.monotonic() - began > _START_LIMIT_S:
                raise SystemExit("The gateway did not start.")
            time.sleep(0.02)
        memory = Path(f"/proc/{process.pid}/status").read_text().partition("VmRSS:")[2].split()[0]
        print(f"started in {time.monotonic() - began:.2f} s, {int(memory) / 1024:.0f} MiB")
        yield Through(f"http://127.0.0.1:{port}", process.pid)
    finally:
        process.terminate()
        process.wait(20)


def _answers(gateway: Endpoint) -> bool:
    try:
        return bool(call_json(gateway, "version", 1.0))
    except RequestFailed:
        return False


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=number, default=5)
    parser.add_argument("--streams", type=number, default=64)
    parser.add_argument("--tokens", type=number, default=200)
    parser.add_argument("--firsts", type=number, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "repository" / MODEL / "1"
        model.mkdir(parents=True)
        (model / "model.py").write_text(_CODE, encoding="utf-8")
        (model.parent / "config.pbtxt").write_text(f'name: "{MODEL}"\n{_CONFIG}', encoding="utf-8")
        make_tokenizer(folder / "tokenizer")
        ids = ModelTokenizer(folder / "tokenizer").encode(PROMPT, add_special_tokens=True)
        print(
            json.dumps({"prompt_tokens": len(ids), "streams": arguments.streams, "tokens": arguments.tokens})
        )
        with (
            running_triton(folder, [MODEL]) as endpoint,
            running_gateway(endpoint, folder / "tokenizer") as made,
        ):
            asyncio.run(measure(Direct(endpoint, ids), made, arguments))


if __name__ == "__main__":
    main()
