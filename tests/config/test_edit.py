"""Keys of a YAML text are taken out, replaced and added; comments and all other lines stay."""

from __future__ import annotations

import pytest
import yaml

from trtllm_hpc.config.edit import EditedText

TEXT = """\
# our job
name: chat # its name

engine: # built
  backend: tensorrtllm
  # why these plugins
  plugins:
    gemm: auto

  # the size
  max_batch_size: 4 # at once
  api: {a: 1, "b, c": [1, 2], d: x}
  note: |
    one
    two
build:
  cpus: 4
# of the server
serve:
  mode: leader
"""


def removed(*path: str) -> list[str]:
    """Lines that are no longer there."""
    edited = EditedText(TEXT)
    edited.remove(path)
    lines = edited.text.splitlines()
    assert [line for line in TEXT.splitlines() if line in lines] == lines, "no other line has changed"
    return [line for line in TEXT.splitlines() if line not in lines]


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        (("engine", "plugins"), ["  plugins:", "    gemm: auto"]),
        (("engine", "max_batch_size"), ["  max_batch_size: 4 # at once"]),
        (("engine", "note"), ["  note: |", "    one", "    two"]),
        (("name",), ["name: chat # its name"]),
        (("build", "cpus"), ["build:", "  cpus: 4"]),
        (("serve", "mode"), ["serve:", "  mode: leader"]),
        (("engine", "nothing"), []),
        (("engine", "backend", "deeper"), []),
    ],
)
def test_a_key_goes_with_its_lines_and_an_empty_section_with_its_last_key(
    path: tuple[str, ...], lines: list[str]
) -> None:
    assert removed(*path) == lines


@pytest.mark.parametrize(
    ("key", "left"),
    [
        ("a", '{"b, c": [1, 2], d: x}'),
        ("b, c", "{a: 1, d: x}"),
        ("d", '{a: 1, "b, c": [1, 2]}'),
    ],
)
def test_a_key_between_braces_goes_with_its_comma(key: str, left: str) -> None:
    edited = EditedText(TEXT)
    edited.remove(("engine", "api", key))
    assert f"  api: {left}\n" in edited.text


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("engine", "max_batch_size"), 8, "  max_batch_size: 8 # at once"),
        (("engine", "new"), True, "  new: true"),
        (("engine", "api", "d"), "y, z", '  api: {a: 1, "b, c": [1, 2], d: "y, z"}'),
        (("engine", "api", "e"), [1, "x"], '  api: {a: 1, "b, c": [1, 2], d: x, e: [1, x]}'),
        (("engine", "llm", "cache", "dtype"), "fp8", "  llm: {cache: {dtype: fp8}}"),
        (("engine", "plugins"), "none", "  plugins: none"),
        (("companion", "enabled"), False, "companion: {enabled: false}"),
    ],
)
def test_a_value_is_replaced_or_added_on_one_line(path: tuple[str, ...], value: object, line: str) -> None:
    edited = EditedText(TEXT)
    edited.put(path, value)
    assert line in edited.text.splitlines()
    found = yaml.safe_load(edited.text)
    for word in path:
        found = found[word]
    assert found == value
    comments = {
        "# our job",
        "# its name",
        "# why these plugins",
        "# the size",
        "# at once",
        "# of the server",
    }
    assert all(comment in edited.text for comment in comments)


def test_a_section_without_a_value_gets_one() -> None:
    edited = EditedText("name: a\nbuild:\nserve:\n  mode: x")
    edited.put(("build", "cpus"), 2)
    edited.put(("serve", "nodes"), 1)
    assert edited.text == "name: a\nbuild: {cpus: 2}\nserve:\n  mode: x\n  nodes: 1\n"


def test_a_section_without_a_value_goes_alone() -> None:
    edited = EditedText("name: a\nbuild:\nserve:\n  mode:\n# the end\nlast: 1\n")
    edited.remove(("build",))
    edited.put(("serve", "nodes"), 1)
    assert edited.text == "name: a\nserve:\n  mode:\n  nodes: 1\n# the end\nlast: 1\n"
