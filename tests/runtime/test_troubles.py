"""What stands still: named at the second look, given up after nine intervals."""

from __future__ import annotations

import os
import signal
import subprocess

from tests.runtime.conftest import Runtime
from tests.waiting import eventually
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.process import state_of
from trtllm_hpc.runtime.records import read_events
from trtllm_hpc.runtime.troubles import Troubles, stopped_below

WHY = "process 12 on n1 is stopped (SIGSTOP): haproxy -db"


def noted(paths: RunPaths) -> list[tuple[str, str | None]]:
    return [(event.data["part"], event.data["why"]) for event in read_events(paths, "serve")]


def test_a_fault_is_noted_at_the_second_look_and_given_up_after_45_s(runtime: Runtime) -> None:
    troubles, paths = Troubles(runtime.paths, "serve"), runtime.paths
    assert troubles.look({"12": WHY}) == {} and noted(paths) == []
    assert troubles.look({"12": WHY}) == {} and noted(paths) == [("12", WHY)]
    for _ in range(7):
        assert troubles.look({"12": WHY}) == {}
    assert troubles.look({"12": WHY, "13": WHY}) == {"12": f"{WHY}, for 45 s"}
    assert troubles.look({}) == {} and noted(paths) == [("12", WHY), ("12", None)]


def test_a_moment_is_not_noted(runtime: Runtime) -> None:
    troubles = Troubles(runtime.paths, "serve", None)
    for _ in range(20):
        troubles.look({"12": WHY})
        troubles.look({})
    assert noted(runtime.paths) == []
    assert all(troubles.look({"12": WHY}) == {} for _ in range(40)), "nothing is ever given up"


def test_a_stopped_process_is_named_with_its_command() -> None:
    child = subprocess.Popen(["sleep", "3600"])
    try:
        os.kill(child.pid, signal.SIGSTOP)
        assert eventually(lambda: state_of(child.pid) == "T")
        [why] = stopped_below(os.getpid()).values()
        assert why.startswith(f"process {child.pid} on ") and why.endswith("is stopped (SIGSTOP): sleep 3600")
        assert stopped_below(os.getpid(), {child.pid}) == {}
    finally:
        child.kill()
        child.wait()


def test_a_stopped_process_of_the_build_is_noted_until_its_batch_script_ends(runtime: Runtime) -> None:
    batch_script = subprocess.Popen(["sleep", "3600"])
    beat = runtime.paths.rank_heartbeat("build", 0)
    beat.parent.mkdir(exist_ok=True)
    beat.write_text("1 python (7)")
    watch = runtime.start("watch-build", f"--while-pid={batch_script.pid}")
    assert eventually(lambda: read_events(runtime.paths, "build"))
    [trouble] = read_events(runtime.paths, "build")
    assert trouble.data["why"] == "the build: its process python (7) is stopped (SIGSTOP)"
    batch_script.kill()
    batch_script.wait()
    watch.communicate(timeout=60)
    assert watch.returncode == 0
