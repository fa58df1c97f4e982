"""``jobs list`` and ``jobs show``."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tests.schemas.check import documented
from trtllm_hpc.cli import command
from trtllm_hpc.config.files import jobs


def test_every_shipped_job_file_is_listed_with_what_it_shows() -> None:
    done = CliRunner().invoke(command, ["jobs", "list", "--json"], catch_exceptions=False)
    found = {job["name"]: job for job in documented("jobs list", done.output)}
    assert sorted(found) == sorted(jobs())
    assert list(found)[:3] == ["smollm2", "tiny-llama-1rank", "tiny-llama"], "those without a GPU first"
    assert all(job["summary"] and job["backend"] and job["ranks"] for job in found.values())
    big = found["readme-llama3-70b-tp4-pp2"]
    assert (big["backend"], big["ranks"], big["gpus"]) == ("tensorrtllm", 8, 8)
    assert found["disaggregated-llama"]["gpus"] == 2
    deepseek = found["deepseek-r1-two-nodes"]
    assert (deepseek["ranks"], deepseek["gpus"], deepseek["nodes"]) == (16, 16, 2)
    assert (deepseek["model"], deepseek["gpu_types"]) == ("DeepSeek-R1-0528", "H100 or H200")


@pytest.mark.parametrize("width", [60, 80])
def test_the_list_fits_a_terminal_without_a_broken_word(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr("trtllm_hpc.report.tables.terminal_width", lambda: width)
    monkeypatch.setenv("TERM", "dumb")
    output = CliRunner().invoke(command, ["jobs", "list"], catch_exceptions=False).output
    assert all(len(line) <= width for line in output.splitlines())
    assert set(jobs()) <= set(output.split())
    if width == 80:
        assert output.splitlines()[1].split() == ["model", "backend", "nodes", "GPUs"]


def test_a_job_file_is_shown_as_it_is() -> None:
    done = CliRunner().invoke(command, ["jobs", "show", "tiny-llama"], catch_exceptions=False)
    assert done.output == jobs()["tiny-llama"].read_text()
    wrong = CliRunner().invoke(command, ["jobs", "show", "tiny"])
    assert wrong.exit_code == 2 and "tiny-llama" in wrong.output
