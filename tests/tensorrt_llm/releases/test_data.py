"""The data files say of themselves only what can be true."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from trtllm_hpc.tensorrt_llm.releases import programs
from trtllm_hpc.tensorrt_llm.releases.data_files import DATA, UNRELEASED, UNSET, parsed, read_data
from trtllm_hpc.tensorrt_llm.releases.programs import (
    BY_FAMILY,
    PROGRAM_FILES,
    Form,
    Program,
    families,
    programs_of,
)
from trtllm_hpc.tensorrt_llm.releases.release import Release, releases

VERSIONS = [release.version for release in releases()]
KEYS = {
    *("form", "since", "until", "default", "choices", "aliases", "required"),
    *("note", "ignored", "source", "type"),
}
TO_COME = UNRELEASED
"""Stands for images that are newer than every release."""


def lists() -> Iterator[str]:
    for name, file in PROGRAM_FILES.items():
        if name in BY_FAMILY:
            yield from sorted(f"{file}/{path.name[:-5]}" for path in (DATA / file).iterdir())
        else:
            yield file


LISTS = list(lists())


def entries(file: str) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    data = read_data(file)
    parts = [data, *data.get("subcommand", {}).values()]
    for part in parts:
        for option, found in part["options"].items():
            yield option, found if isinstance(found, list) else [found]


def every_program() -> Iterator[Program]:
    for release in releases():
        for name in PROGRAM_FILES:
            for family in families() if name in BY_FAMILY else ("llama",):
                if (program := release.program(name, family)) is not None:
                    yield program
                    yield from program.subcommands.values()


@pytest.mark.parametrize("file", LISTS)
def test_every_release_of_a_list_is_known_and_says_where_it_was_read(file: str) -> None:
    read = read_data(file)["read"]
    assert read
    for version, said in read.items():
        assert version in VERSIONS
        assert said["status"] == "verified" or re.fullmatch(
            r"taken from (main|[\d.]+(\.dev\d+|\.post\d+)?)", said["status"]
        )
        assert said["source"]


def test_a_new_release_needs_a_line_in_one_file_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "listed_versions", lambda: (*VERSIONS, "9.0.0"))
    find = programs.load_program.__wrapped__
    build, newest = find("9.0.0", "trtllm-build", "llama"), find(VERSIONS[-1], "trtllm-build", "llama")
    assert build is not None and newest is not None
    assert build.status.startswith("taken from ") and set(build.options) == set(newest.options)
    assert find("9.0.0", "build.py", "llama") is None, "removed in 0.8.0"


@pytest.mark.parametrize("file", LISTS)
def test_the_entries_of_an_option_follow_each_other(file: str) -> None:
    for option, spans in entries(file):
        begin = parsed(VERSIONS[0])
        for place, span in enumerate(spans):
            assert set(span) <= KEYS, option
            assert span["form"] in get_args(Form), option
            assert "since" not in span or span["since"] in (*VERSIONS, TO_COME), option
            assert "until" not in span or span["until"] in (*VERSIONS, TO_COME), option
            since = parsed(span.get("since", VERSIONS[0]))
            assert since >= begin, option
            assert "until" in span or place == len(spans) - 1, option
            begin = parsed(span.get("until", "9999"))
            assert since < begin, option


def test_a_default_is_one_of_the_choices() -> None:
    for program in every_program():
        for option in program.options.values():
            if option.choices and option.default not in (None, False, UNSET):
                assert str(option.default) in option.choices, (program.release, program.name, option.name)


@pytest.mark.parametrize("release", releases(), ids=lambda release: release.version)
def test_every_release_can_build(release: Release) -> None:
    names = {program.name for program in programs_of(release.version)}
    assert "build.py" in names or {"convert_checkpoint.py", "trtllm-build"} <= names
    assert release.source and release.paths.examples and release.paths.all_models


def test_facts_are_the_same_from_the_cache_without_one_and_after_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    read = read_data.__wrapped__
    first = read("releases")
    [kept] = (tmp_path / "trtllm-hpc" / "releases").iterdir()
    assert json.loads(kept.read_text(encoding="utf-8")) == first == read("releases")
    kept.write_text("{", encoding="utf-8")
    assert read("releases") == first
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert read("releases") == first
