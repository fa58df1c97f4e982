"""The stories: each serves a model, measures, compares or breaks it, and returns figures for the page."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import trtllm_hpc

from .machine import (
    REQUESTS,
    SMOLLM2,
    EnergyCounter,
    Figures,
    Machine,
    by_vllm_bench,
    figures_of,
    gpu_of,
    kill,
    measured,
)

ROUNDS = 3
_ANOTHER_TEMPLATE = "{% for message in messages %}[INST] {{ message.content }} [/INST]\n{% endfor %}"
_QUICK = ("--enforce-eager",)
"""Starts half a minute sooner, and computes more slowly."""


def _beside_vllm_bench(machine: Machine, name: str, model: Path) -> Figures:
    """Measure one server with ours and with ``vllm bench serve``, in turns; and its energy in two ways."""
    rounds = list[Figures]()
    with machine.served(machine.job(name, model)) as (run, ready_s), EnergyCounter() as counter:
        for number in range(ROUNDS):
            for streams in REQUESTS:
                row: Figures = {"streams": streams}
                for client in ("ours", "vllm") if number % 2 == 0 else ("vllm", "ours"):
                    if client == "ours":
                        row[client] = figures_of(measured(run, streams, model))
                    else:
                        row[client] = by_vllm_bench(machine, run, streams, model)
                rounds.append(row)
                print(name, number, json.dumps(row), flush=True)
        for row in rounds:
            row["ours"]["counter_j"] = counter.joules(gpu_of(run), *row["ours"]["window"])
        question = [{"role": "user", "content": "What is the capital of France?"}]
        answer = run.client().chat(question, temperature=0, max_tokens=16).text
    return {"ready_s": ready_s, "rounds": rounds, "answer": answer}


def smollm2(machine: Machine) -> Figures:
    """SmolLM2 on one GPU, beside ``vllm bench serve``."""
    return _beside_vllm_bench(machine, "smollm2-vllm", SMOLLM2)


def shape_8b(machine: Machine) -> Figures:
    """An 8B shape on one GPU, beside ``vllm bench serve``."""
    return _beside_vllm_bench(machine, "shape-8b", machine.shape_8b)


def _levels(machine: Machine, job: Path, model: Path, streams: Sequence[int]) -> Figures:
    with machine.served(job) as (run, ready_s):
        return {
            "ready_s": ready_s,
            "levels": {str(number): figures_of(measured(run, number, model)) for number in streams},
        }


def energy(machine: Machine) -> Figures:
    """The energy of the 8B shape on one GPU, in two ways."""
    model, rounds = machine.shape_8b, list[Figures]()
    with machine.served(machine.job("energy", model)) as (run, ready_s), EnergyCounter() as counter:
        for streams in REQUESTS:
            ours = figures_of(measured(run, streams, model))
            ours["counter_j"] = counter.joules(gpu_of(run), *ours["window"])
            rounds.append({"streams": streams, "ours": ours})
    return {"ready_s": ready_s, "rounds": rounds}


def instances(machine: Machine) -> Figures:
    """Two instances of SmolLM2 behind the proxy."""
    job = machine.job("two-instances", SMOLLM2, serve={"instances": 2})
    return _levels(machine, job, SMOLLM2, (32, 128, 256))


def tensor_parallel(machine: Machine) -> Figures:
    """The 8B shape on two GPUs."""
    model = machine.shape_8b
    return _levels(machine, machine.job("tp2", model, ranks=2), model, tuple(REQUESTS))


def sweep(machine: Machine) -> Figures:
    """A sweep of ``--max-num-seqs`` in one allocation, with its frontier."""
    model = machine.shape_8b
    workload = {"kind": "normal", "input_tokens": 128, "output_tokens": 64, "tokenizer": str(model)}
    load = {"concurrencies": [16, 64, 128], "requests": 512, "warmup_requests": 64, "exact_output": True}
    variants = {
        f"seqs{size}": {
            "serve": {"command": machine.command("--load-format", "dummy", "--max-num-seqs", str(size))}
        }
        for size in (16, 64, 128)
    }
    companion = {"time_limit_minutes": 15, "benchmark": {"workload": workload, **load}}
    chosen = {"allocation": "one", "variants": variants}
    job = machine.job("max-num-seqs", model, companion=companion, sweep=chosen)
    runs, ignored = machine.folder / "runs", ["model-files"]
    made = trtllm_hpc.sweep(job, "sandbox", machine.settings, runs, ignored_checks=ignored)
    status = made.wait()
    results = made.results(slo="tpot.p99<20ms")
    keys = ("variant", "level", "valid", "frontier", "output_tokens_per_s_per_gpu", "tokens_per_s_per_user")
    points = [{key: getattr(point, key) for key in keys} for point in results.points]
    return {
        "exit_code": int(status.exit_code),
        "points": points,
        "best": results.best.sentence if results.best is not None else "",
    }


def evaluation(machine: Machine) -> Figures:
    """The shipped task: its gate passes, and fails with another chat template."""
    template = machine.folder / "another.jinja"
    template.write_text(_ANOTHER_TEMPLATE)
    evaluate = {"tasks": ["facts"], "threshold": 0.3}
    companion = {"time_limit_minutes": 10, "benchmark": None, "evaluate": evaluate}
    runs: Figures = {}
    for name, options in (("its own", ()), ("another", ("--chat-template", str(template)))):
        job = machine.job(f"template-{name[:3]}", SMOLLM2, *_QUICK, *options, companion=companion)
        run = machine.submit(job)
        status = run.wait("end")
        [task] = json.loads(run.paths.evaluation().read_text())["tasks"]
        runs[name] = {"exit_code": int(status.exit_code), "score": task["score"], "passed": task["passed"]}
    return {"templates": runs}


def routing(machine: Machine) -> Figures:
    """50 conversations of 6 turns over two instances: ``least`` beside ``session``."""
    workload = {
        "kind": "conversations",
        "input_tokens": 600,
        "output_tokens": 64,
        "turns": 6,
        "prefix_tokens": 256,
        "think_seconds": 0.2,
        "tokenizer": str(SMOLLM2),
    }
    ways: Figures = {"counted": "Hits are those that both instances of vLLM have counted."}
    for way in ("least", "session"):
        job = machine.job(f"routing-{way}", SMOLLM2, serve={"instances": 2, "routing": way})
        with machine.served(job) as (run, _):
            load = {"workload": workload, "requests": 50, "warmup_requests": 0}
            measurement = measured(run, 50, SMOLLM2, **load)
            [level] = measurement.summary.levels
            command = [sys.executable, "-m", "trtllm_hpc", "metrics", str(run.folder), "--json"]
            page = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
            ways[way] = {
                "ttft_p50_ms_by_turn": {
                    it.turn: getattr(it.metrics.get("ttft_ms"), "p50", None) for it in level.turns
                },
                "hit_share": page["values"].get("kv_hit_share"),
                "figures": figures_of(measurement),
            }
    return ways


# Faults -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A fault of the engine."""

    expected: str
    """A regular expression that the cause must match, written down before."""
    options: tuple[str, ...] = ()
    """Further options of the server."""
    model: str = "{model}"
    kills: tuple[str, ...] = ()
    """Words in the command lines of the processes to kill once the server is ready."""
    occupied: bool = False
    """Whether another server already uses every GPU."""


FAULTS = {
    "kill -9 of EngineCore": Fault("EngineCore|engine process", kills=("VLLM::EngineCore", "spawn_main")),
    "kill -9 of the API server": Fault("signal 9", kills=("vllm.entrypoints.cli.main serve",)),
    "a context that does not fit": Fault(
        "KV cache", options=("--max-model-len", "8192", "--kv-cache-memory-bytes", "16777216")
    ),
    "an option that does not exist": Fault("--no-such-option", options=("--no-such-option", "3")),
    "no such model": Fault("/no/such/model", model="/no/such/model"),
    "a second server on the same GPU": Fault("[Mm]emory", occupied=True),
}


@contextmanager
def _occupied(machine: Machine) -> Iterator[None]:
    """Have another vLLM on every GPU, which Slurm does not know of."""
    servers = list[tuple[subprocess.Popen[bytes], Path]]()
    try:
        for gpu in range(machine.gpus):
            words = [machine.vllm, "serve", str(SMOLLM2), "--port", str(18_100 + gpu), *_QUICK]
            log = machine.folder / f"occupant-{gpu}.log"
            with log.open("wb") as file:
                place = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
                process = subprocess.Popen(words, env=place, stdout=file, stderr=file, start_new_session=True)
            servers.append((process, log))
        for process, log in servers:
            while b"startup complete" not in log.read_bytes() and process.poll() is None:
                time.sleep(0.5)
        yield
    finally:
        for process, _ in servers:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def faults(machine: Machine) -> Figures:
    """Faults of the engine, and what ``explain`` names as their cause."""
    found: Figures = {}
    for number, (name, fault) in enumerate(FAULTS.items()):
        serve = {
            "ready_timeout_seconds": 180,
            "command": machine.command(*_QUICK, *fault.options, model=fault.model),
        }
        with _occupied(machine) if fault.occupied else nullcontext():
            begun = time.monotonic()
            with machine.submit(machine.job(f"fault-{number}", SMOLLM2, serve=serve)) as run:
                if fault.kills:
                    run.wait("ready", timeout_s=240)
                    kill(run, fault.kills)
                    begun = time.monotonic()
                status = run.wait("end")
        command = [sys.executable, "-m", "trtllm_hpc", "explain", str(run.folder)]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
        first = "\n".join(said.splitlines()[:2])
        found[name] = {
            "seconds": round(time.monotonic() - begun, 1),
            "exit_code": int(status.exit_code),
            "status": status.sentence,
            "explain": first,
            "right": re.search(fault.expected, first) is not None,
        }
        print(name, json.dumps(found[name], indent=1), flush=True)
    return {"faults": found}


STORIES: dict[str, Callable[[Machine], Figures]] = {
    story.__name__.replace("_", "-"): story
    for story in (smollm2, shape_8b, energy, instances, routing, tensor_parallel, sweep, evaluation, faults)
}
