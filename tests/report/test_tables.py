from __future__ import annotations

import pytest

from trtllm_hpc.report.formatting import format_bytes
from trtllm_hpc.report.log_table import LogRow, print_logs
from trtllm_hpc.report.status import status_table
from trtllm_hpc.report.tables import Table, as_text, print_table, wrap
from trtllm_hpc.runs.status import StageStatus

ROWS = [
    LogRow("build", None, None, "ended 0", 6, None, "/runs/r/logs/build.out"),
    LogRow(
        step="serve",
        rank=1,
        host="gpu-node-0123.cluster.example.org",
        state="failed (signal 9 (SIGKILL))",
        size_bytes=123456,
        first_error="E0721 10:02:03.123 1 model.cc:12] " + "a long start " * 20 + "to its end",
        path="/runs/r/logs/serve_1.out",
    ),
]


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_a_terminal_gets_the_logs_with_errors_below_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    for module in ("trtllm_hpc.report.tables", "trtllm_hpc.report.log_table"):
        monkeypatch.setattr(f"{module}.terminal_width", lambda: width)
    monkeypatch.setenv("TERM", "dumb")
    print_logs(ROWS)
    *table, _, title, error = capsys.readouterr().out.splitlines()
    assert all(len(line) <= width for line in (*table, error))
    assert {"build", "ended", "serve", "failed", "(SIGKILL))", "121", "KiB"} <= set(" ".join(table).split())
    assert title == "first errors:"
    assert error.startswith("serve[1]: E0721 10:02:03") and error.endswith("…") and len(error) == width


def test_a_pipe_gets_whole_errors_a_log_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_logs(ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[3].endswith("to its end")
    assert "gpu-node-0123.cluster.example.org" in lines[3]


def test_the_status_fits_a_terminal_of_60_columns() -> None:
    stage = StageStatus(
        stage="companion",
        state="OUT_OF_MEMORY",
        final=True,
        ok=False,
        sentence="was killed since it needed more memory than it had asked for",
        job_id="1234567",
        nodes="gpu-node-[0123-0124]",
    )
    lines = as_text(status_table([stage], 0.0), 60).splitlines()
    assert all(len(line) <= 60 for line in lines)
    words = " ".join(lines).split()
    assert {"companion", "1234567", "OUT_OF_MEMORY", "memory", "asked"} <= set(words)


def test_columns_without_room_are_left_out_the_last_named_first() -> None:
    table = Table("name", "model", "backend", optional=("model", "backend"))
    table.add_row("engine-0123456789", "synthetic", "reference")
    assert table.fitted(80)[1] == []
    assert table.fitted(35)[1] == ["backend"]
    assert table.fitted(20) == (f"name\n{'─' * 17}\nengine-0123456789\n", ["model", "backend"])


def test_columns_left_out_are_named_below_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trtllm_hpc.report.tables.terminal_width", lambda: 24)
    monkeypatch.setenv("TERM", "dumb")
    table = Table("name", "state", optional=("state",))
    table.add_row("engine-0123456789", "half-built")
    print_table(table)
    printed = capsys.readouterr().out
    assert "half-built" not in printed and "(no room for: state;" in printed
    assert all(len(line) <= 24 for line in printed.splitlines())


def test_messages_are_wrapped_at_words_as_far_indented_as_their_line() -> None:
    message = "error: the folder /a/very/long-path/that-is-never-split cannot be read\n  next: ask its owner"
    assert wrap(message, 30).splitlines() == [
        "error: the folder",
        "  /a/very/long-path/that-is-never-split",
        "  cannot be read",
        "  next: ask its owner",
    ]
    assert wrap(message, None) == message


def test_sizes_are_written_in_the_largest_unit() -> None:
    assert [format_bytes(size) for size in (0, 1023, 1536, 5 << 20, 3 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 GiB",
    ]


def test_cells_have_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    table = Table("n", "state", right=("n",))
    table.add_row("1", ("broken in two", "red"))
    assert table.fitted(11, styled=True)[0].splitlines()[2:] == [
        "1  \x1b[31mbroken \x1b[0m",
        "   \x1b[31min two\x1b[0m",
    ]
    assert as_text(table) == "n  state\n────────────────\n1  broken in two\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in table.fitted(11, styled=True)[0]


def test_markup_and_control_characters_are_shown_as_they_are() -> None:
    table = Table("[bold]", "say", rows=[("[red]:smile:", "\x1b]0;\x07")])
    assert as_text(table).splitlines()[2].split() == ["[red]:smile:", r"\x1b]0;\x07"]
