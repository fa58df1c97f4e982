"""``runtime engine`` as the job runs it: by a Python without this package, with a script of its own."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runtime.engine_cache.builds import SCRIPT, MakeRun, Run, tree, with_adapters
from tests.waiting import eventually
from trtllm_hpc.engine_cache import verify
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.runtime.process import descendants
from trtllm_hpc.runtime.records import read_events

pytestmark = pytest.mark.long  # each starts builds, and many wait for one that was killed

SLOW = SCRIPT.replace('case "$1" in', 'mkdir -p "$output.scratch"; sleep "${PAUSE:-0.5}"\ncase "$1" in')
GATED = SCRIPT.replace(
    'case "$1" in', 'touch "$BUILDS.$$"; while [ ! -e "$GATE" ]; do sleep 0.02; done\ncase "$1" in'
)


def assert_clean(run: Run) -> None:
    """Nothing but whole outputs in the cache, and every byte is what was built."""
    for step in ("convert", "build"):
        entry = run.entry(step)
        assert entry.is_complete() and verify(entry) == []
        assert {path.name.split(".")[0] for path in entry.folder.iterdir()} <= {
            *("key", "lock", "output", "used", "uses")
        }
    assert run.paths.engine.resolve() == run.entry().output.resolve()
    assert (run.paths.engine / "rank0.engine").is_file()


def has_waited(run: Run) -> bool:
    return any(event.data.get("state") == "waiting" for event in read_events(run.paths, "build"))


def test_each_step_is_built_once_and_found_after_that(runs: MakeRun) -> None:
    first, second = runs(), runs()
    code, output = first.build(TRTLLM_HPC_JOB_ID="17")
    assert code == 0, output
    assert_clean(first)
    assert "step convert: builds convert" in output and "step build: built build-" in output
    code, output = second.build()
    assert code == 0 and "found in the cache" in output
    assert_clean(second)
    assert second.built() == ["convert", "build"]
    events = [event.data for event in read_events(first.paths, "build") if event.name == "progress"]
    assert [(it["step"], it["of"]) for it in events] == [(1, 2), (1, 2), (2, 2), (2, 2)]
    assert events[0]["message"] == "builds convert"


def test_further_outputs_are_built_and_linked_too(runs: MakeRun) -> None:
    plain = runs()
    assert plain.build()[0] == 0
    steps = with_adapters(plain.recipe).steps
    run = runs(steps=steps)
    code, output = run.build()
    assert code == 0, output
    assert run.built() == ["convert", "build", "lora"]
    assert (run.paths.folder / "lora" / "model.lora_weights.npy").is_file()
    assert (run.paths.engine / "rank0.engine").is_file()
    assert not (run.paths.folder / "convert").exists()


def test_a_failed_step_is_reported_and_leaves_nothing(runs: MakeRun) -> None:
    failing = 'echo half > "$output/rank0.engine"; echo "no such plugin" >&2; exit 3; cp "$convert'
    script = SCRIPT.replace('cp "$convert', failing)
    run = runs(script=script)
    code, output = run.build()
    assert code == ExitCode.BUILD
    assert "no such plugin" in output
    assert "error: step build of the build failed (exit code 3); its own output is above." in output
    assert run.entry("convert").is_complete()
    assert tree(run.entry().folder) == ["key.json", "lock"]
    assert not run.paths.engine.is_symlink()
    mended = runs()
    code, output = mended.build()
    assert code == 0 and "waits" not in output
    assert mended.built() == ["convert", "build", "build"]
    assert_clean(mended)


def test_four_at_once_build_once(runs: MakeRun) -> None:
    racers = [runs(script=SLOW) for _ in range(4)]
    processes = [run.start() for run in racers]
    output = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, output
    assert racers[0].built() == ["convert", "build"]
    for run in racers:
        assert_clean(run)


def test_a_waiting_build_takes_over_from_one_that_fails(runs: MakeRun) -> None:
    # Waits and fails in its last step: of two that wait for the first, either may be the one to go on.
    failing = 'touch "$BUILDS.$$"; while [ ! -e "$GATE" ]; do sleep 0.02; done; [ "$FAILS" = no ] || exit 3; '
    script = SCRIPT.replace('cp "$convert', f'{failing}cp "$convert')
    bad, good = runs(script=script), runs(script=script)
    gate = bad.log.with_name("gate")
    first = bad.start(GATE=str(gate), FAILS="yes")
    assert eventually(lambda: list(gate.parent.glob("builds.*")))
    second = good.start(GATE=str(gate), FAILS="no")
    assert eventually(lambda: has_waited(good))
    gate.touch()
    assert first.wait(60) == ExitCode.BUILD
    assert second.wait(60) == 0
    assert_clean(good)


@pytest.mark.parametrize("victim", ["runtime", "all"])
def test_a_killed_build_is_finished_by_the_next(runs: MakeRun, victim: str) -> None:
    run = runs(script=SLOW)
    chance = random.Random()
    for moment in (0.15, 0.4, 0.7, chance.uniform(0, 1.2)):
        process = run.start()
        time.sleep(moment)
        below = descendants(process.pid)
        chosen = {"runtime": [process.pid], "all": [process.pid, *below]}[victim]
        for pid in chosen:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.communicate(timeout=60)
    code, output = run.build()
    assert code == 0, output
    assert "waits" not in output, "the kernel releases the lock of a killed build"
    assert_clean(run)


def test_a_build_that_has_lost_its_lock_publishes_nothing(runs: MakeRun) -> None:
    """A file server may give the lock of a node that it has not heard of for long to another build."""
    run = runs(script=GATED.replace('mkdir "$output"', 'mkdir -p "$output"'))
    gate, entry = run.log.with_name("gate"), run.entry("convert")
    process = run.start(GATE=str(gate))
    assert eventually(lambda: list(gate.parent.glob("builds.*")))
    (entry.folder / "lock").write_text("another\n")
    (entry.folder / "building").rename(entry.folder / ".building.of-the-other")
    gate.touch()  # the command makes its folder anew
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert run.built() == ["convert", "convert", "build"]
    assert_clean(run)


def test_a_signal_ends_the_build_and_releases_the_lock(runs: MakeRun) -> None:
    run = runs(script=SCRIPT.replace('case "$1" in', 'setsid sleep 3600 & sleep 3600 &\nwait\ncase "$1" in'))
    process = run.start()
    assert eventually(lambda: len(descendants(process.pid)) >= 3)
    below = descendants(process.pid)
    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143 and "the build stops: got SIGTERM" in output
    assert not any(Path(f"/proc/{pid}").exists() for pid in below)
    assert tree(run.entry("convert").folder) == ["key.json", "lock"]


def test_a_wait_has_an_end(runs: MakeRun) -> None:
    holder, waiter = runs(script=GATED), runs(script=GATED, wait_seconds=0.5)
    gate = holder.log.with_name("gate")
    process = holder.start(GATE=str(gate), TRTLLM_HPC_JOB_ID="17")
    assert eventually(lambda: list(gate.parent.glob("builds.*")))
    code, output = waiter.build(GATE=str(gate))
    assert code == ExitCode.BUILD
    assert "being built by job 17" in output and "as long as this job may wait" in output
    gate.touch()
    assert process.wait(60) == 0


def test_an_edited_script_has_an_engine_of_its_own(runs: MakeRun) -> None:
    planned, edited = runs(), runs()
    script = edited.paths.script("build")
    script.write_text(script.read_text().replace("echo '{}'", "echo '{\"edited\": true}'"))
    assert edited.build()[0] == 0
    assert not planned.entry().output.exists()
    assert planned.build()[0] == 0
    assert (planned.paths.engine / "config.json").read_text() == "{}\n"
    assert "edited" in (edited.paths.engine / "config.json").read_text()


def test_a_full_disk_is_one_sentence_and_leaves_nothing(runs: MakeRun) -> None:
    run = runs()
    for limit in (0, 300, 2_000):

        def set_limit(size: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

        process = subprocess.run(
            run.command(),
            env={"PATH": os.environ["PATH"], "BUILDS": str(run.log)},
            capture_output=True,
            text=True,
            preexec_fn=set_limit,
            timeout=60,
        )
        assert process.returncode == ExitCode.BUILD, process.stdout + process.stderr
        assert "Traceback" not in process.stderr and "error: " in process.stderr
    code, output = run.build()
    assert code == 0, output
    assert_clean(run)


def test_the_cache_has_the_permissions_of_its_folder(runs: MakeRun, tmp_path: Path) -> None:
    engines = tmp_path / "engines"
    engines.mkdir()
    engines.chmod(0o2775)
    run = runs()
    umask = os.umask(0o002)
    try:
        assert run.build()[0] == 0
    finally:
        os.umask(umask)
    for path in run.entry().output.rglob("*"):
        wanted = 0o555 if path.is_dir() else 0o444
        assert path.stat().st_mode & wanted == wanted, path


# What the job's machine is ------------------------------------------------------------


def fake_smi(folder: Path, *capabilities: str) -> str:
    """A PATH on which ``nvidia-smi`` shows these GPUs."""
    folder.mkdir()
    program = folder / "nvidia-smi"
    lines = "".join(f"{capability}\n" for capability in capabilities)
    program.write_text(f"#!/bin/sh\nprintf '{lines}'\n")
    program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_the_gpu_is_queried_if_the_profile_names_none(runs: MakeRun, tmp_path: Path) -> None:
    run = runs(compute_capability=None)
    code, output = run.build()
    assert code == ExitCode.BUILD and "compute capability of the GPU cannot be read" in output
    code, output = run.build(PATH=fake_smi(tmp_path / "smi", "9.0", "9.0"))
    assert code == 0, output
    known = runs()
    assert known.build()[0] == 0 and known.built() == ["convert", "build"]


@pytest.mark.parametrize(
    ("capabilities", "sentence"),
    [
        (("8.0",), "compute capability 8.0, but the cluster profile says 9.0"),
        (("8.0", "9.0"), "have different compute capabilities (8.0, 9.0)"),
    ],
)
def test_another_gpu_than_planned_is_refused(
    runs: MakeRun, tmp_path: Path, capabilities: tuple[str, ...], sentence: str
) -> None:
    code, output = runs().build(PATH=fake_smi(tmp_path / "smi", *capabilities))
    assert code == ExitCode.BUILD and sentence in output and "next: " in output


@pytest.mark.parametrize(
    ("installed", "planned", "code", "said"),
    [
        (
            "0.17.0+cu126",
            "0.16.0",
            ExitCode.BUILD,
            "TensorRT-LLM 0.17.0+cu126, but the plan is for 0.16.0",
        ),
        ("0.17.0+cu126", "0.17.0", ExitCode.OK, ""),
        # Images carry some under a release's tag (26.03), and a job file cannot name them.
        ("1.2.0rc8", "1.2.0", ExitCode.OK, "TensorRT-LLM 1.2.0rc8, but the plan is for 1.2.0"),
    ],
)
def test_the_installed_tensorrt_llm_must_be_of_the_planned_release(
    runs: MakeRun, tmp_path: Path, installed: str, planned: str, code: ExitCode, said: str
) -> None:
    metadata = tmp_path / "site" / f"tensorrt_llm-{installed}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: tensorrt-llm\nVersion: {installed}\n")
    run = runs(tensorrt_llm=planned)
    command = [sys.executable, "-S", str(run.paths.runtime), "engine"]
    process = run.start(command, PYTHONPATH=str(tmp_path / "site"))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert said in output and bool(said) == ("the container has" in output)
    if code == ExitCode.OK:
        manifest = (run.entry().output / "trtllm-hpc-manifest.json").read_text()
        assert f'"tensorrt_llm": "{installed}"' in manifest


def test_a_model_that_is_not_on_the_node_is_an_error(runs: MakeRun, tmp_path: Path) -> None:
    run = runs(model_path=str(tmp_path / "nowhere"))
    code, output = run.build()
    assert code == ExitCode.BUILD and f"error: {tmp_path}/nowhere is not there." in output
