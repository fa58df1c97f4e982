from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trtllm_hpc.paths import (
    STAGES,
    RunPaths,
    _Named,
    read_json,
    remove_abandoned,
    write_aside,
    write_folder_aside,
    write_json,
    write_text,
)


def test_every_name_lies_in_the_run_folder_and_is_its_own(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    names = [name for name, value in vars(RunPaths).items() if isinstance(value, _Named)]
    files = [getattr(paths, name) for name in names]
    files += [file for stage in STAGES for file in (paths.sbatch(stage), paths.batch_log(stage))]
    files += [paths.stage_events("build"), paths.rank_log("serve", 0), paths.rank_record("serve", 0)]
    assert len(set(files)) == len(files)
    assert all(file.is_relative_to(paths.folder) and file != paths.folder for file in files)
    assert paths.run_id == "run"


def test_a_relative_folder_does_not_move_with_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = RunPaths("a")
    monkeypatch.chdir("/")
    assert paths.folder == tmp_path / "a"


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_json(file, {"value": 0})
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            write_json(file, {"value": number, "filler": "x" * 20_000})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            record = read_json(file)
            assert record is not None and "value" in record
    finally:
        stop.set()
        writer.join()
    assert [found.name for found in tmp_path.iterdir()] == ["a.json"]


def test_a_writer_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_json(file, 1)
    with pytest.raises(TypeError):
        write_json(file, object())
    with pytest.raises(RuntimeError), write_aside(file) as aside:
        aside.write_text("half")
        raise RuntimeError
    assert read_json(file) == 1
    assert [found.name for found in tmp_path.iterdir()] == ["a.json"]


def killed_while_writing(file: Path, job: str | None = None) -> None:
    script = (
        "import os, sys; from pathlib import Path; from trtllm_hpc.paths import write_aside\n"
        "with write_aside(Path(sys.argv[1])) as aside:\n"
        "    aside.write_text('half'); os.kill(os.getpid(), 9)"
    )
    environment = os.environ if job is None else {**os.environ, "TRTLLM_HPC_JOB_ID": job}
    killed = subprocess.run([sys.executable, "-c", script, str(file)], env=environment)
    assert killed.returncode == -signal.SIGKILL


def test_what_a_killed_job_was_writing_is_removed(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    file = tmp_path / "results" / "a.json"
    write_json(file, 1)
    killed_while_writing(file, job="101")
    killed_while_writing(file)
    _, of_a_command = sorted(tmp_path.rglob(".*"), key=lambda path: ".101." not in path.name)
    remove_abandoned(tmp_path)
    assert sorted(file.parent.iterdir()) == [of_a_command, file], "a command may be writing now"
    assert read_json(file) == 1
    os.utime(of_a_command, (0, 0))
    remove_abandoned(tmp_path)
    assert list(file.parent.iterdir()) == [file]


def test_a_folder_that_a_killed_job_was_writing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_HPC_JOB_ID", "101")
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.setattr(shutil, "rmtree", lambda path, ignore_errors: None)  # killed before it
    with write_folder_aside(folder) as aside:
        (aside / "model").touch()
    monkeypatch.undo()
    (tmp_path / ".engine.101.abcdefgh.aside").symlink_to(folder)
    assert len(list(tmp_path.iterdir())) == 3
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == [folder] and (folder / "model").exists()


def test_nobody_else_can_replace_a_run_whatever_the_umask(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "group" / "runs" / "a")
    before = os.umask(0)
    try:
        paths.make_folders()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(folder.stat().st_mode) for folder in (paths.folder, *paths.folder.parents[:2])]
    assert modes == [0o700, 0o755, 0o755]
    with pytest.raises(FileExistsError):
        paths.make_folders()


def test_text_is_utf8_for_the_owner_alone_unless_said(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_text(tmp_path / "a", "é模")
        write_text(tmp_path / "b", "#!/bin/sh\n", mode=0o700)
    finally:
        os.umask(before)
    assert (tmp_path / "a").read_bytes() == "é模".encode()
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o700


def test_reading_json(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    assert read_json(file) is None
    write_json(file, {"é": [1, None]})
    assert read_json(file) == {"é": [1, None]}
    assert json.loads(file.read_text(encoding="utf-8")) == {"é": [1, None]}
    file.write_text("{")
    with pytest.raises(ValueError):
        read_json(file)


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/a\.json'"):
        write_json(tmp_path / "a.json", {})
    assert list(tmp_path.iterdir()) == []


def test_an_attempt_that_was_removed_leaves_no_name_that_is_taken(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    first, second = paths.new_attempt(), paths.new_attempt()
    first.folder.rmdir()
    assert second.run_id == "2" and paths.new_attempt().run_id == "3"
