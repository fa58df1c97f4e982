"""The energy in a window, from what the ranks wrote about their GPUs."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.plans import write_plan
from tests.waiting import eventually
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.metrics import figures
from trtllm_hpc.bench.power import PowerReadings
from trtllm_hpc.bench.results import Energy, Window
from trtllm_hpc.paths import RunPaths

from .make import request, sample


class Run:
    """A run whose ranks write what a test has them write; second 0 is when the measurement began."""

    def __init__(self, folder: Path, ranks: int = 1) -> None:
        self.paths = RunPaths(folder / "run")
        self.paths.make_folders()
        write_plan(self.paths, world_sizes=(ranks,), gpus_per_node=1)
        # Long ago, so that nobody waits for what is not written yet.
        self.clock = Clock(time.monotonic() - 100, time.time() - 100)
        self.power = PowerReadings(self.paths, self.clock)

    def writes(self, gpu: int, watts: dict[int, float], rank: int = 0, **more: Any) -> None:
        """Append a line for each second, by its end."""
        with self.paths.gpu_readings("serve", rank).open("a") as file:
            for second, power in watts.items():
                line = {
                    "uuid": f"GPU-{gpu}",
                    "index": gpu,
                    "host": "n1",
                    "time": self.clock.started_at + second,
                }
                file.write(
                    json.dumps({**line, "seconds": 1.0, "joules": power, "peak_w": power + 10, **more}) + "\n"
                )

    def energy(self, begin: float, end: float) -> Energy | None:
        return self.power.energy(Window(begin, end))


def seconds(first: int, last: int, watts: float) -> dict[int, float]:
    return dict.fromkeys(range(first, last + 1), watts)


def test_energy_is_what_lies_in_the_window(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.writes(0, {-15: 20.0, 1: 90.0, 2: 80.0, 3: 85.0, **seconds(4, 12, 400), 13: 700.0})
    found = run.energy(4.5, 10.5)
    assert found is not None
    assert found.joules == pytest.approx(400 * 6, rel=0.01)
    run.writes(0, seconds(14, 20, 500))
    later = run.energy(14, 20)
    assert later is not None and later.joules == pytest.approx(3000, rel=0.01)
    assert run.power.source == "by NVML, of 1 GPU"


def test_a_gpu_that_two_ranks_read_counts_once(tmp_path: Path) -> None:
    run = Run(tmp_path, ranks=2)
    run.writes(0, seconds(1, 10, 300), rank=0)
    run.writes(0, seconds(1, 10, 300), rank=1)
    run.writes(1, seconds(1, 10, 100), rank=1)
    found = run.energy(2, 8)
    assert found is not None and found.joules == pytest.approx(400 * 6, rel=0.01)


def test_gpus_slowed_by_heat_are_named_and_those_at_the_power_limit_are_not(tmp_path: Path) -> None:
    run = Run(tmp_path, ranks=2)
    run.writes(0, seconds(1, 10, 300), rank=0, throttled=["power_cap"])
    run.writes(1, seconds(1, 5, 300), rank=1, throttled=[])
    run.writes(1, seconds(6, 10, 200), rank=1, throttled=["hw_thermal", "hw_slowdown"])
    found = run.energy(1, 9)
    assert (
        found is not None
        and found.slowed == "GPU1 of n1 (hw_thermal, 4.0 of 8 s), GPU1 of n1 (hw_slowdown, 4.0 of 8 s)"
    )


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ({0: {"seconds": 0.0, "joules": 0.0}}, "the power of GPU0 of n1 was not measured all the time"),
        ({0: {"seconds": 0.0, "index": None}}, "the power of GPU-0 of n1 was not measured all the time"),
        ({0: {}}, "the power of the GPUs of 1 rank was not measured all the time"),
        ({}, "no rank could read NVML"),
    ],
)
def test_what_was_not_measured_is_unknown_and_never_zero(
    tmp_path: Path, written: dict[int, dict[str, Any]], reason: str
) -> None:
    run = Run(tmp_path, ranks=2)
    for rank, more in written.items():
        run.writes(rank, seconds(1, 10, 300), rank=rank, **more)
    run.power.begin()
    assert run.energy(2, 8) is None
    assert run.power.source == f"not known: {reason}"
    assert not any("power" in key or "energy" in key for key in figures(sample([request(0, 0, 100)])))


def test_a_benchmark_waits_until_the_ranks_have_written(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.writes(0, seconds(85, 99, 300))
    found: list[Energy | None] = []
    waiting = threading.Thread(target=lambda: found.append(run.energy(88, 99.5)))
    waiting.start()
    assert not eventually(lambda: found, 0.3)
    run.writes(0, {100: 300})
    waiting.join(5)
    assert found[0] is not None and found[0].joules == pytest.approx(300 * 11.5, rel=0.01)


def test_a_pass_is_known_however_much_was_written_meanwhile(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.writes(0, seconds(1, 5, 300))
    run.power.begin()
    run.writes(0, seconds(6, 40, 300), throttled=["sw_thermal"], filling="x" * 9000)
    found = run.energy(6, 39)
    assert found is not None and found.slowed == "GPU0 of n1 (sw_thermal, 33.0 of 33 s)"
    run.writes(0, seconds(41, 50, 300))
    file = run.paths.gpu_readings("serve", 0)
    file.rename(file.with_suffix(".old"))  # it is full
    run.writes(0, seconds(51, 60, 300))
    found = run.energy(41, 59)
    assert found is not None and found.joules == pytest.approx(300 * 18, rel=0.01)
