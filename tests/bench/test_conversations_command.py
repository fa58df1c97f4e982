"""``trtllm-hpc bench`` with conversations: figures by turn, the cache, reasoning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.bench.make import request
from tests.bench.openai_server import DONE, Script, delta, openai_server
from tests.bench.test_command import LENIENT, byte_tokenizer
from trtllm_hpc.bench.analysis.turns import by_turn
from trtllm_hpc.bench.records import read_records
from trtllm_hpc.bench.results import Distribution, read_measurement
from trtllm_hpc.cli import command as trtllm_hpc
from trtllm_hpc.paths import RunPaths

USAGE = {
    "prompt_tokens": 40,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 10},
}
END = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n"


def test_conversations_are_measured_by_turn_and_shown(tmp_path: Path) -> None:
    script = Script([delta(reasoning_content="hm"), 0.02, delta("GR"), delta("ÜN"), END, DONE])
    tokenizer = byte_tokenizer(tmp_path / "tokenizer")
    options = [
        *(
            "--workload",
            "conversations",
            "--set",
            "workload.turns=3",
            "--set",
            "workload.think_seconds=0.01",
            "--input-tokens",
            "20",
        ),
        *(
            "--set",
            "workload.prefix_tokens=12",
            "--tokenizer",
            str(tokenizer),
            "--concurrency",
            "2",
            "--requests",
            "6",
        ),
        *("--set=workload.session=user", "--warmup", "0", "--save-as", "talks", *map(str, LENIENT)),
    ]
    with openai_server(script) as endpoint:
        place = ["--url", endpoint.openai_url or "", "--output", str(tmp_path / "out")]
        shown = CliRunner().invoke(trtllm_hpc, ["bench", *place, *options])
    assert shown.exit_code == 0, shown.output
    assert {path for path, _, _ in script.asked} == {"/v1/chat/completions"}
    assert script.sessions == [None] * 18 and len({body["user"] for body in script.bodies}) == 6
    files = RunPaths(tmp_path / "out").measurement("talks")
    found, records = read_measurement(files.summary), read_records(files.requests)
    assert len(records) == 18 and {record.turn for record in records} == {1, 2, 3}
    assert {(it.reasoning_tokens, it.cached_tokens) for it in records} == {(1, 10)}
    thoughts = [(it.first_answer_s or 0.0) - (it.first_token_s or 0.0) for it in records]
    assert max(thoughts) > 0.01 and min(thoughts) >= 0.0
    [level] = found.levels
    assert [turn.turn for turn in level.turns] == ["1", "2", "3", "slowest"]
    assert level.turns[1].metrics["cached_prompt_share"] == 0.25
    figures = level.passes[0].metrics
    assert figures["cached_prompt_share"] == 0.25 and {"ttfa_ms", "reasoning_tokens"} <= set(figures)
    assert "cached share" in shown.stdout and "slowest" in shown.stdout
    assert "By turn (ms)" in files.report.read_text(encoding="utf-8")


def test_the_field_user_needs_openais_protocol() -> None:
    options = ["--workload", "conversations", "--set=workload.session=user", "--protocol", "grpc"]
    refused = CliRunner().invoke(
        trtllm_hpc, ["bench", "--url", "http://127.0.0.1:9", "--output", "/tmp/none", *options]
    )
    assert refused.exit_code == 2 and "only OpenAI's protocol has the field user" in refused.output


def test_late_turns_are_put_together_and_the_slowest_of_each_conversation_is_found() -> None:
    records = [
        request(0, 0, 500, chunks_ms=[first], chunk_tokens=[10], session=session, turn=turn)
        for session, turn, first in [("a", 1, 10), ("a", 2, 90), ("b", 1, 20), ("b", 9, 30), ("b", 16, 40)]
    ]
    found = by_turn([*records, request(0, 0, 10, status="HTTP 500", session="c", turn=17)])
    assert [(turn.turn, turn.requests, turn.failed) for turn in found] == [
        *(("1", 2, 0), ("2", 1, 0), ("9 to 16", 2, 0), ("17 to 32", 1, 1), ("slowest", 3, 1)),
    ]
    slowest = found[-1].metrics["ttft_ms"]
    assert isinstance(slowest, Distribution)
    assert slowest.max == pytest.approx(90) and slowest.mean == pytest.approx(65)
    assert by_turn([request(0, 0, 10)]) == []
