"""Inject one fault into one run, and see what becomes of it."""

from __future__ import annotations

import json
import random
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.faults.fault import Fault, Moment
from benchmarks.faults.results import Result
from benchmarks.faults.scene import Scene
from benchmarks.faults.site import Site
from tests.local.test_local_profile import leftovers as local_leftovers
from tests.slurm.conftest import Person
from tests.slurm.test_backbone import SMALL, one_rank, two_ranks
from tests.waiting import eventually
from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runtime.records import read_events

READY_S = 150.0
"""How long a run may take to the moment of its fault."""
END_S = 200.0
"""How long ``submit --wait`` may take from the injection to its end."""
UNDER_WAY_S = 6.0
"""From the first answers to a fault during the benchmark: every rank has beaten twice then."""
SOUND = "stage serve runs"
"""What ``status`` says of a run that measures."""
LEFT_S = 15.0
"""How long processes may take to end after their job."""


class NotInjected(Exception):
    """The run did not come to the moment of its fault, or the fault could not be injected."""


@dataclass
class Seen:
    """What ``status`` said."""

    sentence: str = ""
    cause: str = ""
    seconds: float | None = None


def measure(site: Site, fault: Fault) -> Result:
    """Inject one fault.

    Raises:
        NotInjected: it could not be.
    """
    person = site.person(fault.name)
    scene = Scene(site, person, _sections(site, fault), runs=person.folder / "runs")
    with ExitStack() as prepared, ExitStack() as injected:
        prepared.enter_context(fault.prepare(scene))
        if fault.moment is Moment.BEFORE:
            injected.enter_context(fault.inject(scene))
        begun_at = time.time()
        submitting = _submit(scene, fault)
        try:
            if fault.moment is not Moment.BEFORE:
                _await(scene, fault.moment, submitting)
                begun_at = time.time()
                injected.enter_context(fault.inject(scene))
            seen = _watch(scene, fault, submitting, begun_at)
            if fault.undone_when_named:
                injected.close()
            exit_code, errors = _end(submitting, scene)
            if not seen.sentence:  # there was no run to ask about
                seen = Seen(errors, seconds=round(time.time() - begun_at, 1))
            injected.close()
            explained = _explained(scene) if exit_code and not fault.survives else ""
            left = leftovers(scene.person, scene.run)
        finally:
            submitting.kill()
            submitting.communicate()
    return replace(_result(scene, fault, seen, exit_code, left), explained=_without(explained, scene))


def _explained(scene: Scene) -> str:
    """What `explain` says first of the run folder: the cause without its lines and its next step."""
    if scene.run is None:
        return ""
    lines = scene.person.types("explain", scene.run.folder).stdout.strip().splitlines()
    return lines[0] if lines else "nothing"


def measure_living(site: Site, faults: Sequence[Fault], tell: Callable[[str], None]) -> list[Result]:
    """Inject faults one after the other into one run, which is cancelled at the end; undo each once named.

    A fault that ends ``submit --wait``, or after which ``status`` stays different, is the last of its run.
    """
    first, person = faults[0], site.person("living")
    sections = _sections(site, replace(first, requests=900))
    sections["serve"]["tls"] = True
    scene = Scene(site, person, sections, runs=person.folder / "runs")
    submitting = _submit(scene, first)
    measured: list[tuple[Fault, Seen, list[str]]] = []
    try:
        _await(scene, Moment.MEASURES, submitting)
        for fault in faults:
            scene.notes = []
            with fault.inject(scene):
                seen = _watch(scene, fault, submitting, time.time())
            tell(f"  {fault.name}: {seen.seconds} s: {seen.sentence}")
            measured.append((fault, seen, scene.notes))
            if not eventually(lambda: _ask(scene) == (SOUND, "", None), 60):
                scene.notes.append(f"`status` afterwards: {_ask(scene)}")
                break
            if submitting.poll() is not None:
                break
        person.types("cancel", scene.paths.folder)
        exit_code, _ = _end(submitting, scene)
        left = leftovers(person, scene.run)
    finally:
        submitting.kill()
        submitting.communicate()
    results = []
    for fault, seen, scene.notes in measured:
        is_last = fault is measured[-1][0]
        results.append(
            _result(scene, fault, seen, exit_code if is_last else first.exits[0], left if is_last else [])
        )
    return results


def _result(scene: Scene, fault: Fault, seen: Seen, exit_code: int | None, left: list[str]) -> Result:
    return Result(
        fault.name,
        fault.title,
        fault.survives,
        fault.expected,
        list(fault.exits),
        fault.bound_s,
        _without(seen.sentence, scene),
        _without(seen.cause, scene),
        None if fault.survives else seen.seconds,
        exit_code,
        [_without(one, scene) for one in left],
        [_without(one, scene) for one in scene.notes],
        time.strftime("%Y-%m-%d"),
    )


def _sections(site: Site, fault: Fault) -> dict[str, Any]:
    engine = site.engines[fault.ranks]
    companion = {"benchmark": {**SMALL, "requests": fault.requests}}
    sections = (one_rank if fault.ranks == 1 else two_ranks)(engine, companion=companion)
    if fault.builds:
        sections["engine"]["directory"] = None
    return sections


def _submit(scene: Scene, fault: Fault) -> subprocess.Popen[str]:
    person = scene.person
    scene.job_file = person.job(fault.name, **scene.sections)
    words = ("--cluster", person.profile, "--wait", *scene.words)
    return person.command("trtllm-hpc", "submit", scene.job_file, *words)


def _await(scene: Scene, moment: Moment, submitting: subprocess.Popen[str]) -> None:
    """Wait for the moment of the fault."""

    def submitted() -> bool:
        folders = list(scene.runs.glob("*-*/jobs.json"))
        scene.run = RunPaths(folders[0].parent) if folders else None
        return bool(folders and (read_json(folders[0]) or {}).get("complete"))

    def measures() -> bool:
        return scene.paths.benchmark_progress.exists()

    def came(stage: str, *names: str) -> Callable[[], bool]:
        return lambda: any(event.name in names for event in read_events(scene.paths, stage))

    arrived: dict[Moment, Callable[[], bool]] = {
        Moment.BUILDS: came("build", "progress"),
        Moment.LOADS: came("serve", "server_start"),
        Moment.MEASURES: measures,
    }
    for reached in (submitted, arrived.get(moment, lambda: True)):
        eventually(lambda reached=reached: reached() or submitting.poll() is not None, READY_S)  # type: ignore[misc]
        if not reached():
            submitting.kill()
            raise NotInjected(f"not {moment.value}: {submitting.communicate()[1][-500:]}")
    if moment is Moment.MEASURES:
        time.sleep(UNDER_WAY_S)


def _watch(scene: Scene, fault: Fault, submitting: subprocess.Popen[str], begun_at: float) -> Seen:
    """Ask for the status until it names the fault, or ``submit --wait`` has ended."""
    seen = Seen()
    deadline = time.monotonic() + (max(fault.bound_s, 20.0) if fault.living else END_S)
    while True:
        ended = submitting.poll() is not None or time.monotonic() > deadline
        asked_at = time.time()
        said = _ask(scene, fault.asks)
        if said is not None:
            seen.sentence, seen.cause, ended_at = said
            # The folder of a fault has the fault's name, which its words may fit.
            told = _without(f"{seen.sentence}\n{seen.cause}", scene)
            if not fault.survives and re.search(fault.expected, told, re.IGNORECASE):
                since = ended_at if fault.from_slurm and ended_at is not None else begun_at
                since = asked_at if fault.timed else since
                seen.seconds = round(max(0.0, time.time() - since), 1)
                return seen
        if ended:
            return seen
        time.sleep(1)


def _ask(scene: Scene, asks: str = "status") -> tuple[str, str, float | None] | None:
    """The sentence, the likeliest cause, and when Slurm ended the job that failed."""
    words = {"status": ["--json"], "client": ["--prompt", "a", "--max-tokens", "2"], "explain": []}[asks]
    if scene.run is None:
        folders = [folder for folder in scene.runs.glob("*-*") if folder.is_dir()]
        scene.run = RunPaths(folders[0]) if folders else None
        if scene.run is None:
            return None
    answer = scene.person.types(asks, scene.run.folder, *words)
    # Without an answer of Slurm, `status` shows what the run's own files show, and fails.
    if asks != "status" or not answer.stdout.startswith("{"):
        said = "Traceback" if "Traceback" in answer.stderr else answer.stderr.strip() or answer.stdout.strip()
        return (said.splitlines()[0] if said else "", "", None)
    status = json.loads(answer.stdout)
    ends = [stage["times"]["ended_at"] for stage in status["stages"] if stage["final"] and not stage["ok"]]
    known = [end for end in ends if end is not None]
    causes = [cause["sentence"] for cause in status["causes"]]
    causes += [
        f"instance {one['instance']}: {one['state']}, restarts: {one['restarts']}; {one['reason']}"
        for one in status["instances"]
        if one["reason"]
    ]
    return status["sentence"], causes[0] if causes else "", min(known, default=None)


def _end(submitting: subprocess.Popen[str], scene: Scene) -> tuple[int | None, str]:
    """The exit code of ``submit --wait`` and its first error."""
    try:
        _, errors = submitting.communicate(timeout=END_S)
    except subprocess.TimeoutExpired:
        scene.notes.append(f"`submit --wait` did not end within {END_S:g} s")
        return None, ""
    if "Traceback" in errors:
        scene.notes.append("`submit --wait` showed a traceback")
    _, _, words = f"\n{errors}".partition("\nerror")
    # What is wrong with a job file follows in lines of its own.
    found = f"error{words}".splitlines()[: 2 if " problem" in words.partition("\n")[0] else 1]
    return submitting.returncode, " ".join(map(str.strip, found)) if words else errors.strip()[-300:]


def leftovers(person: Person, run: RunPaths | None) -> list[str]:
    """What is left after the end of a run: jobs, processes, memory, files.

    The empty folder that Triton's Python backend makes in /tmp shows no job, so it does not count.
    """
    eventually(lambda: not person.jobs_in_queue(), 30)
    left = [f"job {job}" for job in person.jobs_in_queue()]
    if not left:
        eventually(lambda: not person.leftovers(), LEFT_S)
    left += [one[:100] for one in person.leftovers()]
    if run is not None and run.folder.exists():
        left += (
            [f"this machine: {it}" for it in local_leftovers(run)] if person.profile.stem == "local" else []
        )
        left += [
            f"run folder: {file.relative_to(run.folder)}"
            for file in run.folder.rglob(".*")
            if not file.name.endswith(".lock")  # whose holder is gone: the lock is free
        ]
    return left


def _without(text: str, scene: Scene) -> str:
    """A sentence without the folders of this benchmark."""
    return text.replace(str(scene.person.folder), "~").replace(str(scene.site.home), "~")


def kill_submits(
    site: Site, tell: Callable[[str], None], moments: int = 20, longest_s: float = 5.0
) -> Result:
    """``kill -9`` of ``submit --wait`` at random moments; what it had submitted is then cancelled."""
    name, chance, left, told = "kill-submit", random.Random(1), [], {"complete": 0, "half": 0, "nothing": 0}
    runs_with_leftovers = 0
    for number in range(moments):
        person = site.person(f"{name}-{number}")
        person.environment = {"TRTLLM_HPC_GATE_SECONDS": "3"}
        scene = Scene(site, person, one_rank(site.engines[1]), runs=person.folder / "runs")
        job = person.job(name, **scene.sections)
        process = person.command("trtllm-hpc", "submit", job, "--cluster", person.profile, "--wait")
        moment = chance.uniform(0, longest_s)
        time.sleep(moment)
        process.kill()
        process.communicate()
        folders = list(scene.runs.glob("*-*")) if scene.runs.exists() else []
        run = RunPaths(folders[0]) if folders else None
        record = read_json(run.jobs) if run is not None else None
        state = "nothing" if record is None else "complete" if record.get("complete") else "half"
        told[state] += 1
        if run is not None and state == "complete":
            person.types("cancel", run.folder)
        found = leftovers(person, run)
        tell(f"  {number + 1}: killed after {moment:.2f} s, submitted: {state}, left: {found}")
        runs_with_leftovers += bool(found)
        left += [f"after {moment:.2f} s: {one}" for one in found]
        site.clean()
    sentence = f"of {moments} runs {runs_with_leftovers} left something behind"
    notes = [
        f"killed {told['nothing']} times before anything was submitted, {told['half']} times half-way, "
        f"{told['complete']} times after that (then `trtllm-hpc cancel`)"
    ]
    return Result(
        name,
        f"`kill -9` of `submit --wait` at {moments} random moments of its first {longest_s:g} s",
        True,
        rf"of {moments} runs 0 left",
        [-9],
        0.0,
        sentence,
        "",
        None,
        -9,
        left,
        notes,
        time.strftime("%Y-%m-%d"),
    )
