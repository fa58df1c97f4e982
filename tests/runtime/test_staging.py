"""Weights on a node's own disk: copied once and whole, also after SIGKILL and by two runs at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.waiting import eventually
from trtllm_hpc.errors import StartFailed
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import read_events
from trtllm_hpc.runtime.staging import stage_model

SLOW = """
import sys, time
from pathlib import Path
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime import staging
staging._BLOCK_BYTES = 1000
add = staging._Progress.add
def slow(self, count):
    add(self, count)
    while not Path(sys.argv[4]).exists():
        time.sleep(0.01)
staging._Progress.add = slow
staging.stage_model(RunPaths(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), 14, 0)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    for name in ("config.json", "a.safetensors", "pytorch_model.bin"):
        (folder / name).write_bytes(name.encode() * 500)
    (tmp_path / "run" / "ranks").mkdir(parents=True)
    return folder


def begin(tmp_path: Path, source: Path, run: str) -> subprocess.Popen[str]:
    link = tmp_path / "node" / run / "tiny"
    words = [str(tmp_path / "run"), str(source), str(link), str(tmp_path / "go on")]
    return subprocess.Popen([sys.executable, "-c", SLOW, *words], stdout=subprocess.PIPE, text=True)


def copied(tmp_path: Path) -> list[str]:
    return sorted(it.name for it in tmp_path.glob("node/.trtllm-hpc-*/*/tiny/*"))


def parts(tmp_path: Path) -> list[Path]:
    return [*tmp_path.glob("node/.trtllm-hpc-*/*/partial/*")]


def test_a_copy_that_was_killed_leaves_nothing_half(tmp_path: Path, source: Path) -> None:
    link = tmp_path / "node" / "trtllm-hpc-a" / "tiny"
    with begin(tmp_path, source, "trtllm-hpc-a") as process:
        assert eventually(lambda: len(parts(tmp_path)) == 2, 20)
        process.kill()
    assert copied(tmp_path) == [] and not link.exists()
    stage_model(RunPaths(tmp_path / "run"), source, link, 14, 0)
    assert copied(tmp_path) == ["a.safetensors", "config.json"] and not parts(tmp_path)
    assert (link / "a.safetensors").read_bytes() == (source / "a.safetensors").read_bytes()


def test_two_runs_at_once_copy_once(tmp_path: Path, source: Path) -> None:
    processes = [begin(tmp_path, source, f"trtllm-hpc-{name}") for name in "ab"]
    assert eventually(lambda: [*tmp_path.glob("node/.trtllm-hpc-*/*/partial/*")], 20)
    (tmp_path / "go on").touch()
    said = sorted(process.communicate()[0].splitlines()[-1].partition(": ")[2] for process in processes)
    assert said == ["0 of 2 files were copied", "2 of 2 files were copied"]


def test_an_old_copy_and_its_links_go(tmp_path: Path, source: Path) -> None:
    run, node = RunPaths(tmp_path / "run"), tmp_path / "node"
    stage_model(run, source, node / "trtllm-hpc-a" / "tiny", 14, 0)
    [used] = node.glob(".trtllm-hpc-*/*/used")
    (source / "config.json").write_text("changed")
    stage_model(run, source, node / "trtllm-hpc-b" / "tiny", 14, 0)
    assert used.exists() and (node / "trtllm-hpc-b" / "tiny" / "config.json").read_text() == "changed"
    before = time.time() - 15 * 86_400
    os.utime(used, (before, before))
    stage_model(run, source, node / "trtllm-hpc-b" / "tiny", 14, 0)
    assert not used.parent.exists() and not (node / "trtllm-hpc-a").exists()


def test_a_file_that_differs_from_the_hub_is_refused(tmp_path: Path, source: Path) -> None:
    (source.parent / "hub.json").write_text('{"files": {"a.safetensors": [6500, "%s"]}}' % ("0" * 64))
    run, link = RunPaths(tmp_path / "run"), tmp_path / "node" / "trtllm-hpc-a" / "tiny"
    with pytest.raises(StartFailed, match=r"a\.safetensors is damaged, or has changed: its hash differs"):
        stage_model(run, source, link, 14, 0)
    assert not link.exists() and "a.safetensors" not in copied(tmp_path)
    [event] = read_events(run, "serve")
    assert "its hash differs" in event.data["reason"]
