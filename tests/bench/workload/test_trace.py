from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtllm_hpc.bench.workload.request import WorkloadRequest, write_workload
from trtllm_hpc.errors import ConfigError

from .helpers import build, lengths_of, read_workload


def write(folder: Path, *entries: dict[str, Any]) -> Path:
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return file


def mooncake(timestamp: float, tokens: int, hashes: list[int] | None = None) -> dict[str, Any]:
    """An entry in the layout of Mooncake's traces."""
    return {"timestamp": timestamp, "input_length": tokens, "output_length": 3, "hash_ids": hashes or []}


def test_times_are_milliseconds_after_the_first_and_lengths_as_recorded(tmp_path: Path) -> None:
    file = write(tmp_path, mooncake(27000, 20), mooncake(27482, 10), mooncake(30000, 30))
    built = build(10, kind="trace", path=file)
    assert [request.due_s for request in built.requests] == [0.0, 0.482, 3.0]
    assert lengths_of(built.requests) == [(20, 3), (10, 3), (30, 3)]
    assert [request.source for request in built.requests] == ["line 1", "line 2", "line 3"]


@pytest.mark.parametrize(
    "text",
    [
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,20,3\n"
        "2023-11-16 18:17:04.4619600,10,3\n",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\r\n"
        "5,ChatGPT,20,3,23,API log\r\n5.482,GPT-4,10,3,13,Conversation log\r\n",
    ],
)
def test_the_traces_of_azure_and_burstgpt(tmp_path: Path, text: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text, newline="")
    built = build(10, kind="trace", path=file)
    assert [request.due_s for request in built.requests] == pytest.approx([0.0, 0.482], abs=1e-6)
    assert lengths_of(built.requests) == [(20, 3), (10, 3)]
    file.write_text(f"{text}soon,20,none\n")
    with pytest.raises(ConfigError, match=f"{file}:4: needs a time and numbers of tokens"):
        build(10, kind="trace", path=file)


def test_the_same_hash_stands_for_the_same_512_tokens(tmp_path: Path) -> None:
    entries = [mooncake(0, 1300, [1, 2, 3]), mooncake(1, 1300, [1, 2, 9]), mooncake(2, 600, [7, 2])]
    built = build(3, kind="trace", path=write(tmp_path, *entries), token_ids=True)
    first, second, third = (list(request.token_ids or ()) for request in built.requests)
    assert [len(ids) for ids in (first, second, third)] == [1300, 1300, 600]
    assert first[:1024] == second[:1024] and first[1024:1027] != second[1024:1027]
    assert third[512:] == first[512:600] and third[:3] != first[:3]


def test_a_trace_is_not_repeated_and_a_note_says_if_it_is_short(tmp_path: Path) -> None:
    file = write(tmp_path, mooncake(0, 5), mooncake(1, 5))
    built = build(5, kind="trace", path=file, settings={"requests": 5})
    assert len(built.requests) == 2
    assert built.notes == ["The trace has only 2 requests instead of 5."]
    assert len(build(1, kind="trace", path=file).requests) == 1
    assert build(5, kind="trace", path=file).notes == [], "no number was requested"


def test_requests_longer_than_the_engine_takes_are_left_out_and_counted(tmp_path: Path) -> None:
    file = write(tmp_path, mooncake(0, 5), mooncake(1, 50), mooncake(2, 5))
    built = build(3, kind="trace", path=file, max_input_len=10)
    assert [request.due_s for request in built.requests] == [0.0, 0.002]
    assert built.notes == ["Left out 1 of 3 requests: longer than 10 tokens."]
    with pytest.raises(ConfigError, match="every prompt is longer than 4 tokens"):
        build(3, kind="trace", path=file, max_input_len=4)


def test_requests_are_in_the_order_of_their_times(tmp_path: Path) -> None:
    file = write(tmp_path, {"prompt": "late", "due_s": 5}, {"prompt": "early", "due_s": 1})
    built = build(2, kind="trace", path=file)
    assert [(request.prompt, request.due_s) for request in built.requests] == [("early", 0.0), ("late", 4.0)]


@pytest.mark.parametrize("token_ids", [False, True])
def test_a_written_workload_gives_the_same_requests_again(tmp_path: Path, token_ids: bool) -> None:
    recorded = write(tmp_path, mooncake(0, 20, [4]), mooncake(1500, 10), mooncake(1700, 30))
    first = build(3, kind="trace", path=recorded, token_ids=token_ids).requests
    write_workload(tmp_path / "first.workload.jsonl", first)
    assert read_workload(tmp_path / "first.workload.jsonl") == first
    again = build(3, kind="trace", path=tmp_path / "first.workload.jsonl", token_ids=token_ids).requests
    assert again == first


def test_a_written_workload_keeps_every_character(tmp_path: Path) -> None:
    requests = [
        WorkloadRequest(3, "naïve \u2028 \n\0 \U0001f600", source="prompt 1"),
        WorkloadRequest(1, token_ids=(4, 5)),
    ]
    file = tmp_path / "x.workload.jsonl"
    write_workload(file, requests)
    assert file.read_bytes().isascii()
    assert read_workload(file) == requests


@pytest.mark.parametrize(
    ("entries", "line", "message"),
    [
        ([{"prompt": "x", "due_s": 0}, {"prompt": "x"}], 2, "has no time: expected due_s in seconds"),
        ([{"prompt": "x", "timestamp": "soon"}], 1, "timestamp must be a number; found 'soon'"),
        ([{"prompt": "x", "due_s": float("nan")}], 1, "due_s must be a number; found nan"),
        ([{"prompt": "x", "due_s": 0}, mooncake(1, 5)], 2, "has no prompt"),
        ([mooncake(0, 0)], 1, "input_length must be a whole number from 1 to 10,000,000; found 0"),
        ([{**mooncake(0, 5), "hash_ids": ["a"]}], 1, "hash_ids must be a list of whole numbers"),
        ([{**mooncake(0, 5), "output_length": -1}], 1, "output_length must be a whole number"),
        ([{"due_s": 0, "prompt": " "}], 1, "the prompt is empty"),
        ([{"due_s": 0}], 1, "has no prompt"),
    ],
)
def test_an_invalid_trace_is_refused_with_the_line(
    tmp_path: Path, entries: list[dict[str, Any]], line: int, message: str
) -> None:
    file = write(tmp_path, *entries)
    with pytest.raises(ConfigError) as raised:
        build(5, kind="trace", path=file)
    (diagnostic,) = raised.value.diagnostics
    assert message in diagnostic.message
    assert (diagnostic.file, diagnostic.line) == (str(file), line)
