from __future__ import annotations

import pytest

from trtllm_hpc.report.log_table import LogRow, print_logs
from trtllm_hpc.report.tables import Table, as_text, wrap

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


def test_a_pipe_gets_whole_errors(capsys: pytest.CaptureFixture[str]) -> None:
    print_logs(ROWS)
    *_, log, _, title, error = capsys.readouterr().out.splitlines()
    assert "gpu-node-0123.cluster.example.org" in log
    assert title == "first errors:" and error.endswith("to its end")


def test_columns_without_room_are_left_out_the_last_named_first() -> None:
    table = Table("name", "model", "backend", optional=("model", "backend"))
    table.add_row("engine-0123456789", "synthetic", "reference")
    assert table.fitted(80)[1] == []
    assert table.fitted(35)[1] == ["backend"]
    assert table.fitted(20) == (f"name\n{'─' * 17}\nengine-0123456789\n", ["model", "backend"])


def test_messages_are_wrapped_at_words_as_far_indented_as_their_line() -> None:
    message = "error: the folder /a/very/long-path/that-is-never-split cannot be read\n  next: ask its owner"
    assert wrap(message, 30).splitlines() == [
        "error: the folder",
        "  /a/very/long-path/that-is-never-split",
        "  cannot be read",
        "  next: ask its owner",
    ]
    assert wrap(message, None) == message


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
