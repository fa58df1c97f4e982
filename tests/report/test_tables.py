from __future__ import annotations

from typing import Any

import pytest
from rich.table import Table

from trtllm_hpc.report.log_table import fitted, print_logs, size_words
from trtllm_hpc.report.status import status_table
from trtllm_hpc.report.tables import as_text

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
