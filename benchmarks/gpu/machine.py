"""Where the stories run: job files for vLLM, servers, measurements by ours and by vLLM's own client."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trtllm_hpc
from trtllm_hpc.runs.fetched_models import default_folder
from trtllm_hpc.runtime.gpus import Nvml

Figures = dict[str, Any]

SMOLLM2 = default_folder("smollm2")
TOKENS = 128
"""Length of a prompt, and of an answer."""
REQUESTS = {8: 24, 32: 20, 128: 12}
"""Requests of a pass for each of its streams, by the number of streams."""
_LISTEN = ("--host", "{address}", "--port", "{port}")
_SHAPE_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""``config.json`` of Llama 3.1 8B but for SmolLM2's vocabulary: 7.4 billion weights."""


@dataclass(frozen=True)
class Machine:
    """One node with GPUs, under Slurm, with vLLM."""

    folder: Path
    """For job files and runs."""
    vllm: str
    """The program."""
    gpus: int

    @property
    def settings(self) -> list[str]:
        """The keys of the profile ``sandbox`` that differ from machine to machine."""
        return [f"cluster.slurm_conf={os.environ['SLURM_CONF']}", f"cluster.gpus_per_node={self.gpus}"]

    @property
    def shape_8b(self) -> Path:
        """The folder of the model with random weights and SmolLM2's tokenizer and chat template."""
        folder = self.folder / "shape-8b"
        if not (folder / "config.json").exists():
            folder.mkdir(exist_ok=True)
            for file in (*SMOLLM2.glob("*token*"), *SMOLLM2.glob("*.jinja")):
                shutil.copy(file, folder)
            (folder / "config.json").write_text(json.dumps(_SHAPE_8B))
        return folder

    def command(self, *options: str, model: str = "{model}") -> list[str]:
        """Return ``serve.command`` of a job file."""
        return [self.vllm, "serve", model, *_LISTEN, *options]

    def job(self, name: str, model: Path, *options: str, ranks: int = 1, **sections: Any) -> Path:
        """Write a job file; ``serve`` in ``sections`` adds keys, the others are whole sections."""
        if model == self.shape_8b:
            options = ("--load-format", "dummy", *options)
        if ranks > 1:
            options = ("--tensor-parallel-size", "{tensor_parallel}", *options)
        serve = {"command": self.command(*options), "cpus_per_rank": 8, "ready_timeout_seconds": 400}
        whole = {
            "name": name,
            "model": {"path": str(model)},
            "engine": {"backend": "command", "tensor_parallel": ranks, "max_seq_len": 8192},
            "companion": {"enabled": False},
            **sections,
            "serve": {**serve, "time_limit_minutes": 20, **sections.get("serve", {})},
        }
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps(whole, indent=1))
        return file

    def submit(self, file: Path) -> trtllm_hpc.Run:
        """Submit a job file."""
        runs, ignored = self.folder / "runs", ["model-files"]
        return trtllm_hpc.submit(file, "sandbox", self.settings, runs, ignored_checks=ignored)

    @contextmanager
    def served(self, file: Path) -> Iterator[tuple[trtllm_hpc.Run, float]]:
        """Yield a server that is ready, and the seconds from its submission; it is cancelled at the end."""
        begun = time.monotonic()
        with self.submit(file) as run:
            run.wait("ready", timeout_s=420)
            yield run, round(time.monotonic() - begun, 1)


def measured(run: trtllm_hpc.Run, streams: int, model: Path, **settings: Any) -> trtllm_hpc.Measurement:
    """Measure a closed loop of prompts of 128 tokens, with answers of 128 tokens, that share no prefix."""
    lengths = {"input_tokens": TOKENS, "output_tokens": TOKENS, "tokenizer": str(model)}
    load = {"concurrency": streams, "warmup_requests": streams, "exact_output": True}
    requests = streams * REQUESTS.get(streams, 12)
    usual = {"workload": {"kind": "normal", **lengths}, "requests": requests, "seed": int(time.time())}
    return trtllm_hpc.bench(run, **{**usual, **load, **settings})


def figures_of(measurement: trtllm_hpc.Measurement) -> Figures:
    """Return the figures of a measurement with one level, as the page shows them."""
    summary = measurement.summary
    [level] = summary.levels
    [only] = level.passes

    def percentile(key: str, name: str) -> float | None:
        return getattr(only.metrics.get(key), name, None)

    return {
        "tokens_per_s": only.metrics["output_tokens_per_s"],
        "ttft_p50_ms": percentile("ttft_ms", "p50"),
        "ttft_p99_ms": percentile("ttft_ms", "p99"),
        "tpot_p50_ms": percentile("tpot_ms", "p50"),
        "failed": only.failed,
        "invalid": "; ".join(summary.verdict.reasons),
        "energy_per_token_j": only.metrics.get("energy_per_output_token_j"),
        "power_w": only.metrics.get("power_mean_w"),
        "window": [summary.started_at + it for it in (only.window.start_s, only.window.end_s)],
    }


def by_vllm_bench(machine: Machine, run: trtllm_hpc.Run, streams: int, model: Path) -> Figures:
    """Return the same figures by ``vllm bench serve``, of the same server through the same proxy."""
    endpoint = run.endpoint
    assert endpoint is not None and endpoint.openai_url is not None and endpoint.key_file is not None
    requests, file = streams * REQUESTS[streams], machine.folder / f"{run.id}-vllm.json"
    options = {
        "backend": "openai",
        "model": model,
        "tokenizer": model,
        "base-url": endpoint.openai_url.removesuffix("/v1"),
        "dataset-name": "random",
        "random-input-len": TOKENS,
        "random-output-len": TOKENS,
        "num-prompts": requests,
        "max-concurrency": streams,
        "num-warmups": streams,
        "seed": int(time.time()),
        "result-dir": file.parent,
        "result-filename": file.name,
    }
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    command = [machine.vllm, "bench", "serve", *words, "--ignore-eos", "--save-result"]
    key = {"OPENAI_API_KEY": Path(endpoint.key_file).read_text().strip()}
    done = subprocess.run(command, env={**os.environ, **key}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    result = json.loads(file.read_text())
    return {
        "tokens_per_s": result["output_throughput"],
        "ttft_p50_ms": result["median_ttft_ms"],
        "ttft_p99_ms": result["p99_ttft_ms"],
        "tpot_p50_ms": result["median_tpot_ms"],
        "failed": requests - result["completed"],
    }


class EnergyCounter:
    """NVML's own counter of the energy of every GPU, read ten times a second by a thread."""

    def __init__(self) -> None:
        nvml = Nvml.opened()
        self._gpus = nvml.gpus(map(str, range(8))) if nvml is not None else []
        self._read: dict[str, list[tuple[float, float]]] = {gpu.uuid: [] for gpu in self._gpus}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> EnergyCounter:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            for gpu in self._gpus:
                joules = gpu.read("TotalEnergyConsumption", kind=ctypes.c_ulonglong, scale=1e-3)
                if joules is not None:
                    self._read[gpu.uuid].append((time.time(), joules))

    def joules(self, uuid: str, start: float, end: float) -> float | None:
        """Return the energy of a GPU between two moments, in seconds since the epoch; ``None``: not read."""
        readings = self._read.get(uuid, [])
        if not readings or readings[0][0] > start or readings[-1][0] < end:
            return None

        def at(moment: float) -> float:
            place = bisect_left(readings, (moment, 0.0))
            (t0, j0), (t1, j1) = readings[place - 1], readings[place]
            return j0 + (j1 - j0) * (moment - t0) / (t1 - t0)

        return at(end) - at(start)


def gpu_of(run: trtllm_hpc.Run) -> str:
    """Return the UUID of the GPU of a server with one rank; empty where its rank could not read NVML."""
    files = list(run.paths.ranks.glob("serve*.gpus.jsonl"))
    return str(json.loads(files[0].read_text().splitlines()[-1])["uuid"]) if files else ""


def kill(run: trtllm_hpc.Run, words: Sequence[str]) -> None:
    """Kill the processes of a run's server whose command line has one of the words, with signal 9."""
    job = f"SLURM_JOB_ID={run.jobs['serve']}\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process ended meanwhile
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if job in (folder / "environ").read_bytes() and any(word in line for word in words):
                os.kill(int(folder.name), signal.SIGKILL)
