"""Inject a fault into a run, and record what ``status`` shows and what is left behind."""

from __future__ import annotations

import json
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

# Importing these modules registers their injections.
import benchmarks.faults.files
import benchmarks.faults.processes
import benchmarks.faults.slurm
import benchmarks.faults.ways  # noqa: F401
from benchmarks.faults.fault import Fault
from benchmarks.faults.results import Result
from benchmarks.faults.scene import Scene, injected
from benchmarks.faults.site import Site
from tests.local.test_local_profile import leftovers as local_leftovers
from tests.slurm.conftest import Person
from tests.slurm.test_backbone import SMALL, one_rank, two_ranks
from tests.waiting import eventually
from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runtime.records import read_events

READY_S = 150.0
"""Longest time in seconds until the moment of the fault."""
END_S = 200.0
"""Longest time in seconds from the injection until the end of ``submit --wait``."""
UNDER_WAY_S = 6.0
"""Seconds from the first answers of the benchmark to the fault, enough for two heartbeats of every rank."""
SOUND = "stage serve runs"
"""The sentence of ``status`` during a measurement without faults."""
LEFT_S = 15.0
"""Longest time in seconds that processes may need to end after their job."""

Tell = Callable[[str], None]


class NotInjected(Exception):
    """The run did not reach the moment of the fault, or the fault could not be injected."""


@dataclass
class Seen:
    """The last answer of ``status``."""

    sentence: str = ""
    cause: str = ""
    seconds: float | None = None
    """Seconds until the answer named the fault; ``None`` if no answer did."""


def measure(site: Site, faults: Sequence[Fault], tell: Tell) -> list[Result]:
    """Inject a fault, or as many of several faults as possible into one living run.

    Raises:
        NotInjected: the first fault could not be injected.
    """
    fault = faults[0]
    if fault.living:
        return _measure_living(site, faults, tell)
    return [_kill_submits(site, fault, tell) if fault.name == "kill-submit" else _measure(site, fault)]


def _measure(site: Site, fault: Fault) -> Result:
    person = site.person(fault.name)
    scene = Scene(site, person, _sections(site, fault), runs=person.folder / "runs")
    with ExitStack() as prepared, ExitStack() as fault_lasts:
        prepared.enter_context(injected(scene, fault.prepare))
        if fault.when == "before":
            fault_lasts.enter_context(injected(scene, fault.inject))
        begun_at = time.time()
        with _submitted(scene, fault) as submitting:
            if fault.when != "before":
                _await(scene, fault.when, submitting)
                begun_at = time.time()
                fault_lasts.enter_context(injected(scene, fault.inject))
            seen = _watch(scene, fault, submitting, begun_at)
            if fault.undone_when_named:
                fault_lasts.close()
            exit_code, errors = _end(submitting, scene)
            if not seen.sentence:  # `submit` made no run, so its own error counts
                seen = Seen(errors, seconds=round(time.time() - begun_at, 1))
            fault_lasts.close()
            explained = ""
            if exit_code and not fault.survives and scene.run is not None:
                answer = scene.person.types("explain", scene.run.folder)
                lines = (answer.stdout.strip() or answer.stderr.strip()).splitlines()
                explained = " ".join(lines[:2]) or "nothing"  # the sentence of `status`, and the first cause
            return _result(scene, fault, seen, exit_code, leftovers(scene.person, scene.run), explained)


def _measure_living(site: Site, faults: Sequence[Fault], tell: Tell) -> list[Result]:
    """Inject faults one after the other into a run; undo each fault when ``status`` names it.

    A fault that ends ``submit --wait``, or after which ``status`` does not recover, is the last fault of its
    run. At the end the run is cancelled.
    """
    first, person = faults[0], site.person("living")
    sections = _sections(site, first)
    sections["companion"]["benchmark"]["requests"] = 900
    sections["serve"]["tls"] = True
    scene = Scene(site, person, sections, is_shared=True, runs=person.folder / "runs")
    results: list[Result] = []
    with _submitted(scene, first) as submitting:
        _await(scene, "measures", submitting)
        for fault in faults:
            scene.notes = []
            with injected(scene, fault.inject):
                seen = _watch(scene, fault, submitting, time.time())
            tell(f"  {fault.name}: {seen.seconds} s: {seen.sentence}")
            is_sound = eventually(lambda: _ask(scene) == (SOUND, "", None), 60)
            is_last = not is_sound or submitting.poll() is not None or fault is faults[-1]
            exit_code: int | None = fault.exits[0]
            left: list[str] = []
            if not is_sound:
                scene.notes.append(f"`status` afterwards: {_ask(scene)}")
            if is_last:
                person.types("cancel", scene.paths.folder)
                exit_code, _ = _end(submitting, scene)
                left = leftovers(person, scene.run)
            results.append(_result(scene, fault, seen, exit_code, left))
            if is_last:
                break
    return results


def _result(
    scene: Scene, fault: Fault, seen: Seen, exit_code: int | None, left: list[str], explained: str = ""
) -> Result:
    return Result(
        fault.name,
        fault.title,
        fault.survives,
        fault.says,
        list(fault.exits),
        float(fault.bound_s),
        _without(seen.sentence, scene),
        _without(seen.cause, scene),
        None if fault.survives else seen.seconds,
        exit_code,
        [_without(leftover, scene) for leftover in left],
        [_without(note, scene) for note in scene.notes],
        time.strftime("%Y-%m-%d"),
        _without(explained, scene),
    )


def _sections(site: Site, fault: Fault) -> dict[str, Any]:
    companion = {"benchmark": {**SMALL, "requests": fault.requests}}
    sections = (one_rank if fault.ranks == 1 else two_ranks)(site.engines[fault.ranks], companion=companion)
    if fault.builds:
        sections["engine"]["directory"] = None
    return sections


@contextmanager
def _submitted(scene: Scene, fault: Fault) -> Iterator[subprocess.Popen[str]]:
    """Run ``submit --wait`` of the job, and kill the command at the end."""
    scene.job_file = scene.person.job(fault.name, **scene.sections)
    words = ("submit", scene.job_file, "--cluster", scene.person.profile, "--wait", *scene.words)
    process = scene.person.command("trtllm-hpc", *words)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _find_run(scene: Scene, mark: str = "") -> None:
    """Look for the run folder that contains the file ``mark``; it may not exist yet."""
    folders = [file for file in scene.runs.glob(f"*-*/{mark}") if file.exists()]
    scene.run = RunPaths(folders[0].parent if mark else folders[0]) if folders else None


def _await(scene: Scene, when: str, submitting: subprocess.Popen[str]) -> None:

    def submitted() -> bool:
        _find_run(scene, "jobs.json")
        return scene.run is not None and bool((read_json(scene.run.jobs) or {}).get("complete"))

    def came(stage: str, name: str) -> bool:
        return any(event.name == name for event in read_events(scene.paths, stage))

    arrived: dict[str, Callable[[], bool]] = {
        "submitted": lambda: True,
        "builds": lambda: came("build", "progress"),
        "loads": lambda: came("serve", "server_start"),
        "measures": lambda: scene.paths.benchmark_progress.exists(),
    }
    for reached in (submitted, arrived[when]):
        eventually(lambda reached=reached: reached() or submitting.poll() is not None, READY_S)  # type: ignore[misc]
        if not reached():
            submitting.kill()
            raise NotInjected(f"not {when}: {submitting.communicate()[1][-500:]}")
    if when == "measures":
        time.sleep(UNDER_WAY_S)


def _watch(scene: Scene, fault: Fault, submitting: subprocess.Popen[str], begun_at: float) -> Seen:
    """Ask for the status until it names the fault, or ``submit --wait`` has ended."""
    seen = Seen()
    deadline = time.monotonic() + (max(fault.bound_s, 20.0) if fault.living else END_S)
    while True:
        ended = submitting.poll() is not None or time.monotonic() > deadline
        asked_at = time.time()
        answer = _ask(scene, fault.asks)
        if answer is not None:
            seen.sentence, seen.cause, ended_at = answer
            # The paths contain the fault's name, which the fault's pattern could match.
            text = _without(f"{seen.sentence}\n{seen.cause}", scene)
            if not fault.survives and re.search(fault.says, text, re.IGNORECASE):
                since = ended_at if fault.from_slurm and ended_at is not None else begun_at
                since = asked_at if fault.timed else since
                seen.seconds = round(max(0.0, time.time() - since), 1)
                return seen
        if ended:
            return seen
        time.sleep(1)


def _ask(scene: Scene, asks: str = "status") -> tuple[str, str, float | None] | None:
    """Return the sentence and the likeliest cause of ``status``, and when Slurm ended the failed job.

    ``None`` if there is no run yet. ``asks`` names another command whose first line is the sentence.
    """
    words = {"status": ["--json"], "client": ["--prompt", "a", "--max-tokens", "2"], "explain": []}[asks]
    if scene.run is None:
        _find_run(scene)
    if scene.run is None:
        return None
    answer = scene.person.types(asks, scene.run.folder, *words)
    # If Slurm does not answer, `status` prints text from the run's own files and fails.
    if asks != "status" or not answer.stdout.startswith("{"):
        text = "Traceback" if "Traceback" in answer.stderr else answer.stderr.strip() or answer.stdout.strip()
        return (text.splitlines()[0] if text else "", "", None)
    status = json.loads(answer.stdout)
    ends = [stage["times"]["ended_at"] for stage in status["stages"] if stage["final"] and not stage["ok"]]
    causes = [cause["sentence"] for cause in status["causes"]]
    causes += [
        "instance {instance}: {state}, restarts: {restarts}; {reason}".format_map(instance)
        for instance in status["instances"]
        if instance["reason"]
    ]
    known = [end for end in ends if end is not None]
    return status["sentence"], causes[0] if causes else "", min(known, default=None)


def _end(submitting: subprocess.Popen[str], scene: Scene) -> tuple[int | None, str]:
    """Return the exit code of ``submit --wait`` and its first error."""
    try:
        _, errors = submitting.communicate(timeout=END_S)
    except subprocess.TimeoutExpired:
        scene.notes.append(f"`submit --wait` did not end within {END_S:g} s")
        return None, ""
    if "Traceback" in errors:
        scene.notes.append("`submit --wait` showed a traceback")
    _, _, words = f"\n{errors}".partition("\nerror")
    # The mistakes of a job file are on the lines after the error.
    lines = f"error{words}".splitlines()[: 2 if " problem" in words.partition("\n")[0] else 1]
    return submitting.returncode, " ".join(map(str.strip, lines)) if words else errors.strip()[-300:]


def leftovers(person: Person, run: RunPaths | None) -> list[str]:
    """Return what is left after the end of a run: jobs, processes, shared memory and files.

    An empty folder of Triton's Python backend in /tmp does not count, because it cannot be traced to a job.
    """
    eventually(lambda: not person.jobs_in_queue(), 30)
    left = [f"job {job}" for job in person.jobs_in_queue()]
    if not left:
        eventually(lambda: not person.leftovers(), LEFT_S)
    left += [leftover[:100] for leftover in person.leftovers()]
    if run is not None and run.folder.exists():
        if person.profile.stem == "local":
            left += [f"this machine: {leftover}" for leftover in local_leftovers(run)]
        # Hidden files are temporary files; a lock file stays, but nobody holds the lock.
        files = (file for file in run.folder.rglob(".*") if not file.name.endswith(".lock"))
        left += [f"run folder: {file.relative_to(run.folder)}" for file in files]
    return left


def _without(text: str, scene: Scene) -> str:
    """Return a sentence with ``~`` in place of this benchmark's folders."""
    return text.replace(str(scene.person.folder), "~").replace(str(scene.site.home), "~")


def _kill_submits(site: Site, fault: Fault, tell: Tell, moments: int = 20, longest_s: float = 5.0) -> Result:
    """Kill ``submit --wait`` at random moments with SIGKILL, and cancel complete submissions."""
    chance, left, counts = random.Random(1), list[str](), {"complete": 0, "half": 0, "nothing": 0}
    runs_with_leftovers = 0
    for number in range(moments):
        person = site.person(f"{fault.name}-{number}")
        person.environment = {"TRTLLM_HPC_GATE_SECONDS": "3"}
        scene = Scene(site, person, _sections(site, fault), runs=person.folder / "runs")
        with _submitted(scene, fault):
            moment = chance.uniform(0, longest_s)
            time.sleep(moment)
        _find_run(scene)
        record = read_json(scene.run.jobs) if scene.run is not None else None
        state = "nothing" if record is None else "complete" if record.get("complete") else "half"
        counts[state] += 1
        if scene.run is not None and state == "complete":
            person.types("cancel", scene.run.folder)
        of_run = leftovers(person, scene.run)
        tell(f"  {number + 1}: killed after {moment:.2f} s, submitted: {state}, left: {of_run}")
        runs_with_leftovers += bool(of_run)
        left += [f"after {moment:.2f} s: {leftover}" for leftover in of_run]
        site.clean()
    scene.notes = [
        f"killed {counts['nothing']} times before anything was submitted, {counts['half']} times half-way, "
        f"{counts['complete']} times after that (then `trtllm-hpc cancel`)"
    ]
    seen = Seen(f"of {moments} runs {runs_with_leftovers} left something behind")
    return _result(scene, fault, seen, -9, left)
