"""``trtllm-hpc bench`` with conversations: figures by turn, the cache, reasoning."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from tests.bench.openai_server import DONE, Script, delta, openai_server
from tests.bench.test_command import LENIENT
from trtllm_hpc.bench.records import read_records
from trtllm_hpc.bench.results import read_measurement
from trtllm_hpc.cli import command as trtllm_hpc
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.reference.synthetic import make_tokenizer

USAGE = {
    "prompt_tokens": 40,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 10},
}
END = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n"


def test_conversations_are_measured_by_turn_and_shown(tmp_path: Path) -> None:
    script = Script([delta(reasoning_content="hm"), 0.02, delta("GR"), delta("ÜN"), END, DONE])
    make_tokenizer(tokenizer := tmp_path / "tokenizer")
    options = [
        *("--workload", "conversations", "--set", "workload.turns=3", "--set", "workload.think_seconds=0.01"),
        *("--input-tokens", "20", "--set", "workload.prefix_tokens=12", "--tokenizer", str(tokenizer)),
        *("--concurrency", "2", "--requests", "6", "--warmup", "0", "--save-as", "talks", *LENIENT),
    ]
    with openai_server(script) as endpoint:
        place = ["--url", endpoint.openai_url or "", "--output", str(tmp_path / "out")]
        shown = CliRunner().invoke(trtllm_hpc, ["bench", *place, *options])
    assert shown.exit_code == 0, shown.output
    assert {path for path, _, _ in script.asked} == {"/v1/chat/completions"}
    of_turns = [session for session in script.sessions if session is not None]
    assert len(of_turns) == 18 and len(set(of_turns)) == 6
    files = RunPaths(tmp_path / "out").measurement("talks")
    found, records = read_measurement(files.summary), read_records(files.requests)
    assert len(records) == 18 and {record.turn for record in records} == {1, 2, 3}
    assert {(it.reasoning_tokens, it.cached_tokens) for it in records} == {(1, 10)}
    thoughts = [(it.first_answer_s or 0.0) - (it.first_token_s or 0.0) for it in records]
    assert max(thoughts) > 0.01 and min(thoughts) >= 0.0
    [level] = found.levels
    assert [turn.turn for turn in level.turns] == ["1", "2", "3"]
    assert level.turns[1].metrics["cached_prompt_share"] == 0.25
    figures = level.passes[0].metrics
    assert figures["cached_prompt_share"] == 0.25 and {"ttfa_ms", "reasoning_tokens"} <= set(figures)
    assert "cached share" in shown.stdout
    assert "By turn (ms)" in files.report.read_text(encoding="utf-8")
