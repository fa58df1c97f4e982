"""What is written into a checkpoint between its conversion and the build."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.runtime.__main__ import main


def tell(run: Path, *checkpoints: Path) -> int:
    return main(["--run", str(run), "gpus-per-node", "4", *map(str, checkpoints)])


def test_the_gpus_of_a_node_are_written_and_nothing_else_changes(tmp_path: Path) -> None:
    before = {"dtype": "bfloat16", "mapping": {"world_size": 8, "tp_size": 8, "gpus_per_node": 8}}
    parts = [tmp_path / "encoder", tmp_path / "decoder"]
    for part, written in zip(parts, (before, {"dtype": "float16"}), strict=True):
        part.mkdir()
        (part / "config.json").write_text(json.dumps(written))
    assert tell(tmp_path, *parts) == ExitCode.OK
    first, second = (json.loads((part / "config.json").read_text()) for part in parts)
    assert first == {"dtype": "bfloat16", "mapping": {"world_size": 8, "tp_size": 8, "gpus_per_node": 4}}
    assert second == {"dtype": "float16", "mapping": {"gpus_per_node": 4}}


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"mapping": 8}'])
def test_a_folder_without_a_checkpoint_is_one_sentence(
    tmp_path: Path, text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    if text is not None:
        file.write_text(text)
    assert tell(tmp_path, tmp_path) == ExitCode.BUILD
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {file} does not describe a checkpoint")
    assert text is None or file.read_text() == text
