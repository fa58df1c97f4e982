"""Keys that had other names before."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tests.config.files import Folder
from tests.config.files import files as files
from trtllm_hpc.cli import command
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.schemas import RENAMED
from trtllm_hpc.config.validate import all_keys

VALUES = {"repository.tokenizer": "/t", "engine.kv_cache": "paged"}


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_is_an_error_that_names_the_new_one(files: Folder, old: str) -> None:
    section, key = old.split(".")
    job = f"name: a\n{section}:\n  {key}: {VALUES.get(old, 1)}\n"
    [problem] = files.diagnostics(job, "name: here\nscheduler: local\n")
    assert (problem.code, problem.field, problem.line) == ("renamed-key", old, 3)
    assert problem.message == f"is now {RENAMED[old]}" and "schema --renamed" in (problem.hint or "")


def test_every_new_name_is_a_key_and_no_old_one_is() -> None:
    keys = set(all_keys(JobFile))
    assert set(RENAMED.values()) <= keys and not set(RENAMED) & keys


def test_scripts_can_read_the_table() -> None:
    printed = CliRunner().invoke(command, ["schema", "--renamed"]).output
    assert dict(line.split("\t") for line in printed.splitlines()) == dict(RENAMED)
