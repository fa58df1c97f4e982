from __future__ import annotations

from typing import Any

import pytest
from rich.table import Table

from trtllm_hpc.bench.benchmark import Settings, summarise
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.report.log_table import fitted, print_logs, size_words
from trtllm_hpc.report.status import status_table
from trtllm_hpc.report.tables import as_text, benchmark_table
from trtllm_hpc.runtime.records import Endpoint

ENDPOINT = Endpoint("7", "sbx-n1", "10.0.0.1", 1, 2, 3, ["ensemble"], 1.0)


def text(records: list[RequestRecord]) -> str:
    settings = Settings(requests=len(records), rate_per_s=4.0, max_tokens=16)
    return as_text(benchmark_table(summarise(settings, ENDPOINT, 1.0, records)))


def test_the_benchmark_table_as_a_whole() -> None:
    records = [
        RequestRecord(0, 0.0, 0.001, 0.1, "ok", None, 5, 16, "model"),
        RequestRecord(1, 0.25, 0.251, 0.5, "ok", None, 5, 16, "model"),
    ]
    expected = """\
ensemble on sbx-n1: constant arrivals, up to 16 output tokens a request

requests   failed   asked (1/s)   sent (1/s)   finished (1/s)   output (tokens)   output (tokens/s)
───────────────────────────────────────────────────────────────────────────────────────────────────
       2        0          4.00         4.00             4.00                32                64.0

                        mean (ms)    p50 (ms)    p90 (ms)    p99 (ms)    max (ms)
─────────────────────────────────────────────────────────────────────────────────
latency from schedule       175.0       175.0       235.0       248.5       250.0
latency from send           174.0       174.0       234.0       247.5       249.0
client's own delay            1.0         1.0         1.0         1.0         1.0
"""
    assert text(records) == expected


def test_figures_without_a_value_are_dashes_and_the_verdict_is_told() -> None:
    table = text([RequestRecord(0, 0.0, 0.0, 1.0, "UNAVAILABLE", "[bold]gone")])
    assert "not valid: No request was answered." in table
    row = next(line for line in table.splitlines() if line.startswith("latency from send"))
    assert row.split() == ["latency", "from", "send", "-", "-", "-", "-", "-"]


ROWS: list[dict[str, Any]] = [
    {"step": "build", "rank": None, "host": None, "state": "ended 0", "size_bytes": 6, "first_error": None},
    {
        "step": "serve",
        "rank": 1,
        "host": "gpu-node-0123.cluster.example.org",
        "state": "failed (signal 9 (SIGKILL))",
        "size_bytes": 123456,
        "first_error": "E0721 10:02:03.123 1 model.cc:12] " + "a long story " * 20 + "to its end",
    },
]


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_the_logs_fit_a_terminal(width: int) -> None:
    table = fitted(ROWS, width)
    assert all(len(line) <= width for line in table.splitlines())
    for words in ("build", "ended 0", "serve", "gpu-node-", "SIGKILL", "120.6 KiB", "E0721 10:02:03", "…"):
        assert words in table


def test_a_pipe_gets_whole_errors_a_log_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_logs(ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[3].endswith("to its end")
    assert "gpu-node-0123.cluster.example.org" in lines[3]


def test_the_status_fits_a_terminal_of_60_columns() -> None:
    stage = {
        "stage": "companion",
        "job_id": "1234567",
        "state": "OUT_OF_MEMORY",
        "final": True,
        "nodes": "gpu-node-[0123-0124]",
        "sentence": "was killed since it needed more memory than it had asked for",
    }
    lines = as_text(status_table({"stages": [stage]}), 60).splitlines()
    assert all(len(line) <= 60 for line in lines)
    words = " ".join(lines).split()
    assert {"companion", "1234567", "OUT_OF_MEMORY", "memory", "asked"} <= set(words)


def test_the_benchmark_fits_a_terminal_of_60_columns() -> None:
    records = [RequestRecord(0, 0.0, 0.001, 0.1, "ok", None, 5, 16, "model")]
    settings = Settings(requests=1, rate_per_s=4.0, max_tokens=16)
    table = as_text(benchmark_table(summarise(settings, ENDPOINT, 1.0, records), narrow=True), 60)
    assert all(len(line) <= 60 for line in table.splitlines())
    rows = [line.split() for line in table.splitlines()]
    assert ["p99", "100.0", "99.0", "1.0"] in rows and ["output", "(tokens)", "16"] in rows


def test_text_has_no_colours_and_no_trailing_spaces() -> None:
    table = Table("a")
    table.add_row("[red]x[/red]")
    assert "\x1b" not in as_text(table) and not any(
        line != line.rstrip() for line in as_text(table).split("\n")
    )


def test_sizes_in_words() -> None:
    assert [size_words(size) for size in (None, 0, 1023, 1536, 5 << 20, 3 << 30)] == [
        None,
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 GiB",
    ]
