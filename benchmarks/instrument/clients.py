"""The measured clients: their commands, their reports and their CPU time."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.instrument.server import InstrumentFailed, Load, Times
from trtllm_hpc.bench.records import RequestRecord, read_records
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths

OURS = "trtllm-hpc"
_SAMPLE_S = 0.05
_LIMIT_S = 600.0
_CAP_SYS_NICE, _PR_CAPBSET_DROP = 23, 24
_PROMPT_TOKENS = 32


class Job(NamedTuple):
    """A run of a client."""

    url: str
    load: Load
    requests: int
    folder: Path
    """Folder for the client's files; beside it are a tokenizer of bytes and the server's certificate."""

    @property
    def tokenizer(self) -> str:
        """Folder of the tokenizer."""
        return str(self.folder.parent / "tokenizer")


def our_command(job: Job) -> list[str]:
    """Return the command of ``trtllm-hpc bench``, as a user types it."""
    streams = str(job.load.streams)
    command = [str(Path(sys.executable).with_name("trtllm-hpc")), "bench", "--url", job.url]
    if job.url.startswith("https"):
        command += ["--certificate", str(RunPaths(job.folder.parent).certificate)]
    command += ["--output", str(job.folder / "out"), "--save-as", "it", "--protocol", "openai-chat", "--json"]
    command += ["--concurrency", streams, "--requests", str(job.requests), "--warmup", streams]
    command += ["--workload", "normal", "--input-tokens", str(_PROMPT_TOKENS)]
    command += ["--output-tokens", str(job.load.tokens), "--tokenizer", job.tokenizer]
    return [*command, "--set", f"processes={job.load.processes}"]


class OurReport:
    """The results that ``trtllm-hpc bench`` wrote."""

    def __init__(self, folder: Path) -> None:
        results = folder / "out" / "results"
        summary = json.loads((results / "it.json").read_text())
        [level] = summary["levels"]
        [only_pass] = level["passes"]
        self.metrics: dict[str, Any] = only_pass["metrics"]
        self.stamp_bound_s: float = only_pass["client"]["stamp_bound_s"]
        self.reasons = " ".join(finding["sentence"] for finding in summary["verdict"]["findings"])
        records = read_records(results / "it.jsonl")
        self.failed = sum(not record.ok for record in records)
        self.measured: list[RequestRecord] = [record for record in records if record.ok and record.measured]
        self.zero_s: float = summary["started_at"] - (time.time() - time.monotonic())
        """Time of the monotonic clock at which the records' times are 0, in seconds."""


# Peers ----------------------------------------------------------------------------------------------


def _aiperf(program: Path, job: Job) -> list[str]:
    words = (
        f"profile --model stub --endpoint-type chat --streaming --ui none --concurrency {job.load.streams}"
    )
    words += f" --request-count {job.requests} --synthetic-input-tokens-mean {_PROMPT_TOKENS}"
    words += f" --output-tokens-mean {job.load.tokens} --use-legacy-max-tokens"
    url = job.url.removesuffix("/v1")
    return [str(program / "aiperf"), *words.split(), "--url", url, "--tokenizer", job.tokenizer,
            "--artifact-dir", str(job.folder / "out")]  # fmt: skip


def _aiperf_ttfts_ms(job: Job) -> list[float]:
    [file] = (job.folder / "out").rglob("profile_export.jsonl")
    lines = [json.loads(line)["metrics"] for line in file.read_text().splitlines()]
    return [line["time_to_first_token"]["value"] for line in lines if "time_to_first_token" in line]


def _guidellm(program: Path, job: Job) -> list[str]:
    target = job.url.removesuffix("/v1")
    words = f"run --backend kind=openai_http,target={target},model=stub,request_format=/v1/chat/completions"
    words += f" --profile kind=concurrent,streams={job.load.streams} --disable-console"
    words += f" --constraint kind=max_requests,count={job.requests} --output kind=json,path=benchmarks.json"
    words += f" --data kind=synthetic_text,prompt_tokens={_PROMPT_TOKENS},output_tokens={job.load.tokens}"
    words += f" --tokenizer kind=huggingface_auto,model={job.tokenizer}"
    return [str(program / "guidellm"), *words.split()]


def _guidellm_ttfts_ms(job: Job) -> list[float]:
    [benchmark] = json.loads((job.folder / "benchmarks.json").read_text())["benchmarks"]
    return [request["time_to_first_token_ms"] for request in benchmark["requests"]["successful"]]


def _genai_bench(program: Path, job: Job) -> list[str]:
    words = "benchmark --api-backend openai --api-key none --api-model-name stub --task text-to-text"
    words += f" --num-concurrency {job.load.streams} --max-requests-per-run {job.requests}"
    words += f" --max-time-per-run 5 --traffic-scenario D({_PROMPT_TOKENS},{job.load.tokens})"
    return [str(program / "genai-bench"), *words.split(), "--api-base", job.url.removesuffix("/v1"),
            "--model-tokenizer", job.tokenizer, "--experiment-base-dir", str(job.folder / "out")]  # fmt: skip


def _genai_bench_ttfts_ms(job: Job) -> list[float]:
    key = "individual_request_metrics"
    files = [json.loads(file.read_text()) for file in (job.folder / "out").rglob("*.json")]
    [requests] = [content[key] for content in files if key in content]
    return [1e3 * request["ttft"] for request in requests if request.get("ttft")]


def _vllm(program: Path, job: Job) -> list[str]:
    words = "bench serve --backend openai-chat --endpoint /v1/chat/completions --model stub"
    words += (
        f" --dataset-name random --random-input-len {_PROMPT_TOKENS} --random-output-len {job.load.tokens}"
    )
    words += f" --num-prompts {job.requests} --max-concurrency {job.load.streams} --disable-tqdm"
    words += " --save-result --save-detailed --result-filename result.json"
    url = job.url.removesuffix("/v1")
    return [str(program / "vllm"), *words.split(), "--base-url", url, "--tokenizer", job.tokenizer,
            "--result-dir", str(job.folder)]  # fmt: skip


def _vllm_ttfts_ms(job: Job) -> list[float]:
    return [1e3 * ttft for ttft in json.loads((job.folder / "result.json").read_text())["ttfts"]]


class Peer(NamedTuple):
    """Another load generator."""

    command: Callable[[Path, Job], list[str]]
    """Returns the command for a job, from the ``bin`` folder of the client's virtual environment."""
    ttfts_ms: Callable[[Job], list[float]]
    """Reads the TTFT of each request in milliseconds from the client's results."""


PEERS = {
    "aiperf": Peer(_aiperf, _aiperf_ttfts_ms),
    "guidellm": Peer(_guidellm, _guidellm_ttfts_ms),
    "genai-bench": Peer(_genai_bench, _genai_bench_ttfts_ms),
    "vllm": Peer(_vllm, _vllm_ttfts_ms),
}
"""The other load generators by name of their package."""


def version_of(package: str, environment: Path) -> str:
    """Return the version of a package in a virtual environment."""
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    done = subprocess.run([environment / "bin" / "python", "-c", code], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


# CPU time -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CpuTime:
    """CPU time of a client with all its processes."""

    sampled_at: Times
    """Times of the samples, in seconds of the monotonic clock."""
    sampled_s: Times
    """CPU time until each sample, in seconds."""
    total_s: float
    """CPU time until the client's end according to wait4(2), in seconds."""

    def until(self, moment: float) -> float:
        """Return the client's CPU time from its start until ``moment``, a time of the monotonic clock."""
        return float(np.interp(moment, self.sampled_at, self.sampled_s))


class _Sampler(threading.Thread):
    """Sums up the run times of all threads of a process and its descendants 20 times per second."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._last: dict[str, int] = defaultdict(int)
        """Run time of each thread in nanoseconds; threads that have ended stay."""
        self.samples: list[tuple[float, float]] = []
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(_SAMPLE_S):
            self._add(self._process)
            self.samples.append((time.monotonic(), sum(self._last.values()) * 1e-9))

    def _add(self, process: int) -> None:
        with suppress(OSError):  # the process has just ended
            for thread in Path(f"/proc/{process}/task").iterdir():
                self._last[thread.name] = int((thread / "schedstat").read_text().split()[0])
                for child in (thread / "children").read_text().split():
                    self._add(int(child))


def run(command: list[str], folder: Path, cores: set[int], *, ordinary: bool) -> CpuTime:
    """Run a client on the given cores, and return its CPU time. Invalid figures are not a failure.

    Args:
        command: of the client.
        folder: for the client's files and log.
        cores: numbers of the cores.
        ordinary: keeps the client from raising its priority, as an ordinary user's limits do.

    Raises:
        InstrumentFailed: the client failed.
    """

    def place() -> None:
        os.sched_setaffinity(0, cores)
        if ordinary:
            resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
            ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_SYS_NICE, 0, 0, 0)

    with (folder / "client.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, preexec_fn=place,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        sampler, late = _Sampler(process.pid), threading.Timer(_LIMIT_S, process.kill)
        sampler.start()
        late.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        late.cancel()
        sampler.ended.set()
        sampler.join()
    if process.returncode not in (0, ExitCode.MEASUREMENT):
        end = (folder / "client.log").read_text(errors="replace")[-2000:]
        raise InstrumentFailed(f"{command[0]} ended with exit code {process.returncode}:\n{end}")
    at, taken = np.array(sampler.samples or [(0.0, 0.0)]).T
    return CpuTime(at, taken, usage.ru_utime + usage.ru_stime)
