"""``python -m benchmarks.upstream`` finds what upstream refuses or reads otherwise than written."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.upstream import __main__ as command
from benchmarks.upstream import stubs
from benchmarks.upstream.jobs import PROFILES, Case, Job, merged

TINY = Path(__file__).parents[1] / "upstream" / "tiny" / "tensorrt_llm"
Change = Callable[..., Path]
BASE: Job = {
    "name": "tiny",
    "model": {"path": "/models/a 'b' é"},
    "engine": {"backend": "pytorch", "tensorrt_llm_version": "9.9.0", "max_batch_size": 8},
    "companion": {"enabled": False},
}
API = {"engine": {"llm_api": {"stream_interval": 4, "env_overrides": {"A": "no"}}}}
PLAIN = merged(
    merged(BASE, API),
    {
        "engine": {
            "tensor_parallel": 2,
            "capacity_scheduler_policy": "max_utilization",
            "llm_api": {
                "speculative_config": {
                    "decoding_type": "DraftTarget",
                    "max_draft_len": 3,
                    "speculative_model": "/d",
                }
            },
        },
        "kv_cache": {"max_attention_window": [4096, 8192]},
    },
)
PHASES = {
    "mode": "disaggregated",
    "disaggregated": {
        "context": {"servers": 2},
        "generation": {},
        "router": "load_balancing",
        "kv_transfer": "UCX",
        "kv_transfer_tokens": 4096,
    },
}
JOBS = {
    "plain": PLAIN,
    "phases": merged(BASE, {"serve": PHASES}),
    "triton": merged(PLAIN, {"serve": {"frontend": "triton"}}),
}
RULES = [{"bogus": 1}, {"stream_interval": 2}]


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Change:
    """Return a copy of the tiny upstream, with one text replaced in one of its files."""
    monkeypatch.setattr(command, "cases", lambda *_: [Case(name, job, "bare") for name, job in JOBS.items()])
    monkeypatch.setattr(command, "CONFIGURATIONS", RULES)
    monkeypatch.setattr(command, "STRICTER", [])
    monkeypatch.setattr(stubs, "LIBRARIES", ["pydantic"])  # the tiny upstream needs no others

    def change(file: str = "version.py", old: str = "", new: str = "") -> Path:
        shutil.copytree(TINY, tmp_path / "tensorrt_llm", ignore=shutil.ignore_patterns("__pycache__"))
        changed = tmp_path / "tensorrt_llm" / file
        text = changed.read_text()
        assert old in text
        changed.write_text(text.replace(old, new))
        return tmp_path

    return change


def found(folder: Path, capsys: pytest.CaptureFixture[str], exit_code: int) -> dict[str, Any]:
    assert command.main([str(folder), "--json"]) == exit_code
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_nothing_is_refused_or_different(
    copy: Change, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [Case(name, job, profile) for name, job in JOBS.items() for profile in PROFILES]
    monkeypatch.setattr(command, "cases", lambda *_: made)
    result = found(copy(), capsys, 0)
    counts = result["counts"]
    assert (result["version"], counts["job files"], counts["runs"]) == ("9.9.0", 3, 9)
    # A server, two phases with their front, and a file of Triton's model, on three profiles.
    assert (counts["command lines"], counts["files"]) == (12, 15)
    assert (result["refused"], result["different"]) == ([], [])
    assert result["rules"] == {"{bogus: 1}": "both refuse", "{stream_interval: 2}": "both take"}
    assert "tensorrt_llm" not in sys.modules, "upstream is forgotten"


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("commands/serve.py", '"--tp_size", ', "", "--tp_size"),
        ("llmapi/llm_args.py", "    env_overrides:", "    others:", "invalid argument: env_overrides"),
        ("llmapi/disagg_utils.py", '!= phase["num_instances"]', "!= 1", "number of urls"),
    ],
)
def test_a_refused_word_key_or_value_is_named(
    copy: Change, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, said: str
) -> None:
    result = found(copy(file, old, new), capsys, 1)
    assert result["refused"] and all(said in each for each in result["refused"])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "if value <= 0:",
            "if value := value + 1:\n            return value\n        if value <= 0:",
            "4 became 5",
        ),
        ("return cls(**given)", "return cls(**{**given, 'max_batch_size': 7})", "max_batch_size: 8 became 7"),
        ('"DraftTarget": DraftTarget', '"DraftTarget": NGram', "'DraftTarget' became 'NGram'"),
    ],
)
def test_a_value_that_arrives_otherwise_is_named(
    copy: Change, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    result = found(copy("llmapi/llm_args.py", old, new), capsys, 1)
    assert result["refused"] == []
    assert result["different"] and all(said in each for each in result["different"])


def test_a_folder_without_upstream_or_a_missing_library_is_an_error(
    copy: Change, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.main([str(tmp_path)]) == 2
    assert "name a folder that contains tensorrt_llm/" in capsys.readouterr().err
    monkeypatch.setattr(stubs, "LIBRARIES", ["not_there_at_all"])
    assert command.main([str(copy())]) == 2
    assert "pip install not_there_at_all" in capsys.readouterr().err
