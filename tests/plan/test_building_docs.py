"""docs/reference/building-engines.md names every key that has an option, and options that exist."""

from __future__ import annotations

import re
from pathlib import Path

from trtllm_hpc.engines.options import ENGINE_KEYS
from trtllm_hpc.tensorrt_llm.releases.programs import PROGRAM_FILES
from trtllm_hpc.tensorrt_llm.releases.release import releases

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "building-engines.md").read_text(encoding="utf-8")


def test_every_key_of_the_table_is_told() -> None:
    words = set(re.findall(r"`([a-z_0-9.]+)`", TEXT))
    missing = {row.key for row in ENGINE_KEYS} - words
    assert missing == {"world_size"}  # no key: it follows from the others


def test_every_option_that_is_named_has_been_in_some_release() -> None:
    families = ("llama", "gpt", "qwen")
    known = {
        option
        for release in releases()
        for name in PROGRAM_FILES
        for family in families
        if (command := release.program(name, family)) is not None
        for option in command.options
    }
    ours = {"--cluster"}
    assert set(re.findall(r"--[a-z][a-z0-9_-]+", TEXT)) - ours - known == set()
