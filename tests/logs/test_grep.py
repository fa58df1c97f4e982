"""`logs --grep` finds what Python's regular expressions match, whatever the expression."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trtllm_hpc.logs.search import literals
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import add_event

from .runs import add_rank, logs, make_run

LINES = [
    "I0721 10:02:03.1 9 server.cc:1] loading: tensorrt_llm:1",
    "[TensorRT-LLM][ERROR] out of memory",
    "\x1b[31merr\x1b[0mor: \x1b[1mred\x1b[0m",
    "",
    "naïve 東京 ab",
    "x" * 70_000 + " far out",
    'a {"b": 12} | c.d aab',
    "3 \u212a",
    "ERROR twice ERROR",
]


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    run = make_run(tmp_path / "run")
    add_event(run, "serve", "stage_begin")
    add_rank(run, 0, world_size=1, log="\n".join(LINES) + "\n")
    return run


def found(run: RunPaths, pattern: str) -> list[str]:
    return logs(run, "--rank", "0", "--grep", pattern).output.splitlines()


@pytest.mark.parametrize(
    "pattern",
    [
        *("out of memory", "ERROR|naïve", "error", "^error: red$", "(?i)error", "[TE]r+or", "ERR(?:OR)?"),
        *(
            "東京 a?b",
            r"\d{2}:\d\d",
            r"\x45RROR",
            r"c\.d",
            r"\| c",
            'a {"b"',
            "^$",
            "a*b|far",
            "ERROR (?=twice)",
        ),
        *("(a|b): 12|zzz", "x?y?server", "ERR.R", "[]|]", r"loading: \w+:1", "no such text", "12}|ERROR"),
        *("\x1b\\[31m", "ab{1,2}$", "a{2}b", "e{0}rror", "(?x) ERROR \\s tw ice"),
        *(
            "(?i)ERROR TWICE|RED",
            "(?i)AB$",
            "(?i:error) twice",
            "(?:err|ERR)(?:or|OR)",
            "(out|far) o",
            "(?i)k",
        ),
    ],
)
def test_the_lines_are_those_that_the_expression_matches(run: RunPaths, searched: str, pattern: str) -> None:
    colours = re.compile(r"\x1b\[[\d;]*m")
    pieces = [line[at : at + 65536] for line in LINES for at in range(0, max(len(line), 1), 65536)]
    wanted = [it for it in pieces if re.search(pattern, it) or re.search(pattern, colours.sub("", it))]
    assert found(run, pattern) == wanted


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("error|warn", {"error", "warn"}),
        (r"took \d+ ms", {"took "}),
        (r"(?:err|warn)ing? x{2}y\.z+", {"err", "warn"}),
        ("(?P<a>out|far) o[fn]?(?!memory)", {"out", "far"}),
        (r"\d+", set()),
        ("(error)?", set()),
        ("(?i)error", set()),
        ("a|b?", set()),
    ],
)
def test_lines_without_a_text_that_every_match_has_are_not_looked_at(pattern: str, texts: set[str]) -> None:
    assert set(literals(pattern)) == texts


def test_lines_belong_to_their_logs(tmp_path: Path, searched: str) -> None:
    run = make_run(tmp_path / "run")
    add_event(run, "serve", "stage_begin")
    for rank in range(4):
        add_rank(run, rank, world_size=4, log=f"text {rank}\n\nother\n" * (rank + 1))
    wanted = [f"serve[{rank}] text {rank}" for rank in range(4) for _ in range(rank + 1)]
    assert logs(run, "--grep", "text .").output.splitlines() == wanted


def test_failed_ranks_come_first(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    add_event(run, "serve", "stage_begin")
    add_rank(run, 0, log="one\n", ended_at=9.0, exit_code=0, stopped_by="SIGTERM")
    add_rank(run, 1, log="one\n", ended_at=8.0, exit_code=1)
    assert logs(run, "--grep", "o").output == "serve[1] one\nserve[0] one\n"


def test_a_line_across_blocks_is_found_once(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    add_event(run, "serve", "stage_begin")
    line = "a line of about fifty bytes, number %07d, the end\n"
    text = "".join(line % number for number in range(60_000))
    add_rank(run, 0, world_size=1, log=text)
    assert logs(run, "--rank", "0", "--grep", "number .*, the end").output == text
