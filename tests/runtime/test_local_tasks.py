"""Tasks on this machine, as srun starts them on a cluster."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.runtime.conftest import Runtime
from tests.waiting import eventually


def spawn(runtime: Runtime, ntasks: int, script: str) -> tuple[object, ...]:
    output = runtime.paths.logs / "task_%t.out"
    return ("spawn", f"--ntasks={ntasks}", f"--output={output}", "bash", "-c", script)


def logs(runtime: Runtime) -> dict[str, str]:
    return {file.name: file.read_text() for file in sorted(runtime.paths.logs.iterdir())}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids(runtime: Runtime, count: int) -> list[int]:
    """What the tasks have written, once each has written a line."""

    def found() -> list[int]:
        return [int(word) for text in logs(runtime).values() for word in text.split()]

    assert eventually(lambda: len(found()) == count), logs(runtime)
    return found()


def test_each_task_knows_its_rank_and_has_its_log(runtime: Runtime) -> None:
    script = 'echo "$TRTLLM_HPC_PROCID of $TRTLLM_HPC_NTASKS"; echo more >&2'
    for _ in range(2):
        assert runtime(*spawn(runtime, 3, script)).returncode == 0
    assert logs(runtime) == {f"task_{rank}.out": f"{rank} of 3\nmore\n" * 2 for rank in range(3)}


def test_the_first_failure_decides_and_ends_the_others(runtime: Runtime) -> None:
    all_there = 'until [ "$(cat "$LOGS"/*.out | wc -l)" = 3 ]; do sleep 0.02; done'
    script = f'echo $$; [ "$TRTLLM_HPC_PROCID" = 1 ] && {{ {all_there}; exit 9; }}; sleep 3600'
    started = time.monotonic()
    answer = runtime(*spawn(runtime, 3, script), LOGS=str(runtime.paths.logs))
    assert answer.returncode == 9
    assert time.monotonic() - started < 9, "a task that obeys SIGTERM needs no grace"
    assert not any(is_alive(pid) for pid in pids(runtime, 3))


def test_a_signal_ends_all_tasks_and_their_children(runtime: Runtime) -> None:
    process = runtime.start(*spawn(runtime, 2, "setsid sleep 3600 & echo $! $$; wait"))
    started = pids(runtime, 4)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    process.communicate()
    assert eventually(lambda: not any(is_alive(pid) for pid in started))


def test_tasks_do_not_outlive_a_spawn_that_is_killed(runtime: Runtime) -> None:
    process = runtime.start(*spawn(runtime, 2, "echo $$; exec sleep 3600"))
    started = pids(runtime, 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert eventually(lambda: not any(is_alive(pid) for pid in started))


def test_what_a_task_leaves_in_the_background_is_ended(runtime: Runtime) -> None:
    assert runtime(*spawn(runtime, 1, "setsid sleep 3600 & echo $!")).returncode == 0
    assert not any(is_alive(pid) for pid in pids(runtime, 1))
