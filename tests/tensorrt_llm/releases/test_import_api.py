"""The tool that compares the release data with upstream's stability tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tools import import_api
from trtllm_hpc.tensorrt_llm import llm_api
from trtllm_hpc.tensorrt_llm.llm_api import SERVER
from trtllm_hpc.tensorrt_llm.releases.data_files import NEWER
from trtllm_hpc.tensorrt_llm.releases.programs import newest_program

GONE, NEW = "enable_in_graph_sampling", "enable_tomorrow"


def copied(folder: Path, name: str, keys: set[str], parsers: list[str]) -> None:
    """Write what upstream's files of one commit say of keys, and of the options of trtllm-serve."""
    references = folder / "unreleased" / name / "tests/unittest/api_stability/references"
    references.mkdir(parents=True)
    YAML().dump({"methods": {"__init__": {"parameters": {key: {} for key in keys}}}}, references / "llm.yaml")
    command = newest_program(SERVER)
    assert command is not None
    options = {
        option.name: {
            "type": f"Choice({parsers if option.name == '--tool_parser' else list(option.choices)})",
            "default": option.default or None,
            "multiple": False,
            "is_flag": option.form == "flag",
            "flags": [option.name, *option.aliases],
        }
        for option in command.options.values()
        if option.name not in ("--grpc", "--no-telemetry")
    }
    YAML().dump({"commands": {"serve": {"options": options}}}, references / "trtllm_serve_cli.yaml")


def test_the_diff_has_what_came_and_went_and_not_what_one_branch_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = (llm_api._keys("", NEWER, {}) | {NEW}) - {GONE}
    for name, further in (("a", set()), ("b", {"of_a_branch"})):
        copied(tmp_path, name, keys | further, ["qwen3", "tomorrow"])
    import_api.main([str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert f'-{GONE} = "unreleased"' in changed and f'+{NEW} = "unreleased"' in changed
    assert any(line.startswith('-"--grpc"') for line in changed)
    assert any('choices = ["qwen3", "tomorrow"]' in line for line in changed if line[0] == "+")
    assert not any("of_a_branch" in line for line in changed)
    assert any("only one of 2 copies has it" in line and "of_a_branch" in line for line in lines)
