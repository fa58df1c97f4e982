"""The energy in a window, from what the ranks wrote about their GPUs, or from a counter of the server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.plans import write_plan
from tests.waiting import eventually
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.metrics import figures
from trtllm_hpc.bench.power import PowerReadings
from trtllm_hpc.bench.results import Energy, Window
from trtllm_hpc.bench.server_metrics.sampling import energy_counter
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import Endpoint

from .make import request, sample

NOWHERE = Endpoint("7", "n1", "127.0.0.1", 0, 0, 0, ["m"], 0.0, openai_url="http://127.0.0.1:9/v1")


class Run:
    """A run whose ranks write what a test has them write; second 0 is when the measurement began."""

    def __init__(self, folder: Path, ranks: int = 1) -> None:
        self.paths = RunPaths(folder / "run")
        self.paths.make_folders()
        write_plan(self.paths, world_sizes=(ranks,), gpus_per_node=1)
        # Long ago, so that nobody waits for what is not written yet.
        self.clock = Clock(time.monotonic() - 100, time.time() - 100)
        self.power = PowerReadings(self.paths, NOWHERE, self.clock)

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

    def energy(self, begin: float, end: float, started: float | None = None) -> Energy | None:
        """The energy in a window of a pass that began before it."""
        return self.power.energy(begin if started is None else started, Window(begin, end), end)


def seconds(first: int, last: int, watts: float) -> dict[int, float]:
    return dict.fromkeys(range(first, last + 1), watts)


def test_energy_is_what_lies_in_the_window_and_idle_is_the_lowest_second_before(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.writes(0, {-15: 20.0, 1: 90.0, 2: 80.0, 3: 85.0, **seconds(4, 12, 400), 13: 700.0})
    found = run.energy(4.5, 10.5, started=3.2)  # 4 to 4.5 is warm-up
    assert found is not None
    assert found.joules == pytest.approx(400 * 6, rel=0.01)
    assert (found.peak_w, found.idle_w, found.capped_share, found.slowed) == (410, 80, 0, "")
    run.writes(0, seconds(14, 20, 500))
    later = run.energy(14, 20)
    assert later is not None and later.joules == pytest.approx(3000, rel=0.01)
    assert later.idle_w == 80, "no second between the passes was idle"
    assert run.power.source == "by NVML, of 1 GPU"


def test_a_gpu_that_two_ranks_read_counts_once(tmp_path: Path) -> None:
    run = Run(tmp_path, ranks=2)
    run.writes(0, seconds(1, 10, 300), rank=0)
    run.writes(0, seconds(1, 10, 300), rank=1)
    run.writes(1, seconds(1, 10, 100), rank=1)
    found = run.energy(2, 8)
    assert found is not None and found.joules == pytest.approx(400 * 6, rel=0.01)
    assert found.peak_w == 420


def test_throttled_gpus_are_named_and_the_power_limit_is_a_share(tmp_path: Path) -> None:
    run = Run(tmp_path, ranks=2)
    run.writes(0, seconds(1, 10, 300), rank=0, throttled=["power_cap"])
    run.writes(1, seconds(1, 5, 300), rank=1, throttled=[])
    run.writes(1, seconds(6, 10, 200), rank=1, throttled=["hw_thermal", "hw_slowdown"])
    found = run.energy(1, 9)
    assert found is not None and found.capped_share == pytest.approx(0.5, abs=0.01)
    assert found.slowed == "GPU1 of n1 (hw_thermal, 4.0 of 8 s), GPU1 of n1 (hw_slowdown, 4.0 of 8 s)"


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ({0: {"seconds": 0.0, "joules": 0.0}}, "the power of GPU0 of n1 was not measured all the time"),
        ({0: {"seconds": 0.0, "index": None}}, "the power of GPU-0 of n1 was not measured all the time"),
        ({0: {}}, "the power of the GPUs of 1 rank was not measured all the time"),
        ({}, "no rank could read NVML, and the server has no counter"),
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


def test_a_gpu_that_is_lost_in_the_window_makes_the_sum_unknown(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.writes(0, seconds(1, 5, 300))
    run.writes(0, seconds(6, 10, 0), seconds=0.0)
    assert run.energy(2, 8) is None


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


def test_a_file_that_was_full_begins_again(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.writes(0, seconds(1, 30, 300))
    assert run.energy(2, 8) is not None
    run.paths.gpu_readings("serve", 0).unlink()
    run.writes(0, seconds(31, 40, 300))
    found = run.energy(31, 39)
    assert found is not None and found.joules == pytest.approx(2400, rel=0.01)


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


def test_a_pass_that_is_not_known_is_named_beside_the_others(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for begin, measured_s in ((1, 1.0), (11, 0.0), (21, 1.0)):
        run.writes(0, seconds(begin, begin + 9, 300), seconds=measured_s)
        assert (run.energy(begin, begin + 8) is not None) == bool(measured_s)
    assert run.power.source == (
        "by NVML, of 1 GPU; not known: the power of GPU0 of n1 was not measured all the time"
    )


def test_figures_by_hand() -> None:
    records = [request(0, 0, 500, tokens_out=20), request(100, 100, 900, tokens_out=30)]
    found = figures(sample(records, energy=Energy(100.0, 150.0, None, 0.25)))
    expected = {
        "energy_per_output_token_j": 2,
        "energy_per_request_j": 50,
        "power_mean_w": 100,
        "power_peak_w": 150,
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    assert found["power_capped_share"] == 0.25
    assert not {"power_idle_w", "energy_per_good_request_j"} & found.keys()


@pytest.fixture
def counting() -> Iterator[tuple[Endpoint, dict[str, str]]]:
    """A server with pages of its own."""
    pages: dict[str, str] = {}

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path)
            self.send_response(404 if page is None else 200)
            self.end_headers()
            self.wfile.write((page or "").encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        yield (
            Endpoint("", "h", "127.0.0.1", 0, 0, 0, ["m"], 0.0, openai_url=f"http://127.0.0.1:{port}/v1"),
            pages,
        )
        server.shutdown()


def test_without_nvml_the_servers_counter_is_scaled_to_the_window(
    tmp_path: Path, counting: tuple[Endpoint, dict[str, str]]
) -> None:
    endpoint, pages = counting
    clock = Clock()
    power = PowerReadings(RunPaths(tmp_path), NOWHERE, clock)
    power.follow(endpoint)
    power.begin()
    assert power.energy(0, Window(0, 1), 1) is None and power.source.startswith("not known")
    pages["/energy_metrics"] = json.dumps({"total_energy_j": 5000.0, "query_time": 1.0})
    begun = clock.now()
    power.begin()
    pages["/energy_metrics"] = json.dumps({"total_energy_j": 5600.0, "query_time": 2.0})
    found = power.energy(0, Window(1, 3), 3)
    assert found is not None and found.joules >= 600 / (clock.now() - begun) * 2
    assert found.peak_w is None and found.idle_w is None
    assert power.source == "by the server's /energy_metrics, over whole passes"


def test_tritons_counter_is_the_sum_over_gpus(counting: tuple[Endpoint, dict[str, str]]) -> None:
    endpoint, pages = counting
    port = int(endpoint.openai_root.rpartition(":")[2])
    triton = Endpoint("", "h", "127.0.0.1", 1, 1, port, ["m"], 0.0)
    pages["/metrics"] = "# TYPE nv_energy_consumption counter\n" + "".join(
        f'nv_energy_consumption{{gpu_uuid="GPU-{number}"}} {joules}\n'
        for number, joules in ((0, 10.5), (1, 20.0))
    )
    assert energy_counter(triton) == ("Triton's nv_energy_consumption", 30.5)
    pages["/metrics"] = "# TYPE nv_cpu_utilization gauge\nnv_cpu_utilization 0.5\n"
    assert energy_counter(triton) is None


def test_the_counter_of_one_instance_is_not_that_of_all(counting: tuple[Endpoint, dict[str, str]]) -> None:
    endpoint, pages = counting
    pages["/energy_metrics"] = json.dumps({"total_energy_j": 5000.0})
    assert energy_counter(endpoint) is not None
    assert energy_counter(replace(endpoint, instances=2)) is None
