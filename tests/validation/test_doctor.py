"""``doctor``, and what ``submit`` and ``render`` do with what the checks find."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.typed import Types
from tests.cli.typed import home as home
from tests.scheduler.fake_slurm import FakeSlurm
from tests.schemas.check import documented
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.validation.checks import CHECKS


@pytest.fixture(autouse=True)
def two_jobs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the working folder, with a profile of a machine without GPUs."""
    monkeypatch.delenv("TRTLLM_HPC_ENGINES", raising=False)
    (home / "good.yaml").write_text("name: good\n")
    (home / "whole.yaml").write_text(
        "name: whole\nrepository: {decoupled: false}\ncompanion: {benchmark: {slo: ttft<1s}}\n"
    )
    (home / "here.yaml").write_text("name: here\nnode_local_folders: []\n")


def test_doctor_of_a_good_job(types: Types, home: Path) -> None:
    code, output, errors = types("doctor", "good.yaml", "--cluster", "local")
    assert (code, errors) == (0, "")
    for words in ("runs-folder", "memory of one rank", "weights", "KV cache"):
        assert words in output
    assert list(home.glob("runs/*")) == []  # nothing is written


def test_doctor_without_a_job_checks_machine_and_cluster(types: Types) -> None:
    code, output, _ = types("doctor", "--cluster", "local")
    assert code == 0 and "runs-folder" in output
    assert "memory of one rank" not in output


def test_doctor_of_a_bad_job_has_the_exit_code_of_bad_jobs(types: Types) -> None:
    code, output, _ = types("doctor", "whole.yaml", "--cluster", "local")
    assert code == ExitCode.CONFIG
    [row] = [line for line in output.splitlines() if line.startswith("slo")]
    assert "fail" in row and "set repository.decoupled to true" in row
    assert "1 failed" in output.splitlines()[-1]


def test_doctor_for_programs(types: Types) -> None:
    code, output, _ = types("doctor", "good.yaml", "--cluster", "local", "--json")
    record = documented("doctor", output)
    assert code == 0 and set(record) == {"checks", "memory", "notes"}
    assert {"runs-folder", "memory"} <= {row["code"] for row in record["checks"]}
    layer = 4 * 256 * 256 + 3 * 256 * 704
    assert record["memory"]["parameters"] == 2 * 512 * 256 + 4 * layer
    assert record["memory"]["kv_per_token"] == 4 * 2 * 256 * 4


def test_the_table_fits_a_terminal_of_80_columns(home: Path) -> None:
    ours, theirs = pty.openpty()
    words = ["-m", "trtllm_hpc", "doctor", "whole.yaml", "--cluster", "local"]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
    with subprocess.Popen([sys.executable, *words], stdout=theirs, env=environment, cwd=home) as process:
        os.close(theirs)
        output = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            output += part
    os.close(ours)
    assert process.returncode == ExitCode.CONFIG
    lines = output.decode().replace("\r\n", "\n").splitlines()
    assert max(map(len, lines)) <= 80
    assert any("next: set repository.decoupled" in line for line in lines)


def test_submit_refuses_what_cannot_work(fake_slurm: FakeSlurm, types: Types, home: Path) -> None:
    code, output, errors = types("submit", "whole.yaml", "--cluster", "./here.yaml")
    assert (code, output) == (ExitCode.CONFIG, "")
    assert "check slo: limits on ttft need streamed answers" in errors
    assert "next: fix it, or override the check with --ignore slo" in errors
    assert fake_slurm.jobs == {} and list(home.glob("runs/*")) == []


def test_submit_goes_on_with_what_is_to_be_ignored(fake_slurm: FakeSlurm, types: Types) -> None:
    words = ("submit", "whole.yaml", "--cluster", "./here.yaml", "--ignore", "slo")
    code, _, errors = types(*words)
    assert code == 0 and len(fake_slurm.jobs) == 3
    [line] = [line for line in errors.splitlines() if "warning: slo: limits" in line]
    assert line.endswith(" (ignored)")  # still said, but not that submit refuses it


def test_doctor_ignores_what_submit_ignores(types: Types, home: Path) -> None:
    """A server that needs no weights is told how to go on without them, and then everything is met."""
    (home / "model").mkdir()
    (home / "model/config.json").write_text("{}")
    (home / "model/tokenizer.json").write_text("{}")
    (home / "dummy.yaml").write_text(
        "name: dummy\nengine: {backend: command}\n"
        "model: {path: model}\n"
        'serve: {command: [env, "{model}", --port, "{port}", --load-format, dummy]}\n'
    )
    code, output, _ = types("doctor", "dummy.yaml", "--cluster", "local")
    [row] = [line for line in output.splitlines() if line.startswith("model-files")]
    assert code == ExitCode.CONFIG and "fail" in row and "--ignore model-files" in row
    code, output, _ = types("doctor", "dummy.yaml", "--cluster", "local", "--ignore", "model-files")
    [row] = [line for line in output.splitlines() if line.startswith("model-files")]
    assert code == 0 and "warn" in row and "(ignored)" in row
    code, _, errors = types("doctor", "dummy.yaml", "--cluster", "local", "--ignore", "model-fils")
    assert code == ExitCode.CONFIG and "no check is called 'model-fils'" in errors


def test_render_only_warns(types: Types, home: Path) -> None:
    code, output, errors = types("render", "whole.yaml", "--cluster", "./here.yaml", "--json")
    assert code == 0 and Path(documented("render", output)["folder"]).is_dir()
    assert "warning: slo: limits on ttft" in errors and "(submit refuses this)" in errors


def test_render_needs_no_slurm_and_does_not_miss_it(
    types: Types, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    setting = "cluster.slurm_conf=/nowhere/slurm.conf"
    code, _, errors = types("render", "good.yaml", "--cluster", "./here.yaml", "--set", setting)
    assert (code, errors) == (0, "")


def test_every_check_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "doctor.md").read_text(encoding="utf-8")
    missing: list[Any] = [check.id for check in CHECKS if f"`{check.id}`" not in text]
    assert missing == []
