"""Every command with ``--json`` has a schema. That output is valid is tested where each command is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from jsonschema import Draft202012Validator

from tests.cli.typed import Types
from tests.cli.typed import home as home
from tests.cli.typed import types as types
from tests.schemas.check import documented, validator
from tools.outputs import OUTPUTS
from trtllm_hpc.cli import command
from trtllm_hpc.errors import ExitCode

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"
EXAMPLES = {
    section.partition("\n")[0]: re.findall(r"```json\n(.*?)\n```", section, re.DOTALL)
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
}


ROWS = re.findall(
    r"^\| `([a-z ]+?)(?: [A-Z-].*?)?` \|.*\| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
)
"""Simple outputs on the page: a command and its fields."""


def with_json(group: click.Group, words: str = "") -> Iterator[str]:
    """The commands that have ``--json``, by their words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if any("--json" in option.opts for option in found.params):
            yield f"{words}{name}"
        if isinstance(found, click.Group):
            yield from with_json(found, f"{words}{name} ")


def test_every_command_with_json_has_one_and_no_other() -> None:
    assert isinstance(command, click.Group)
    assert sorted(with_json(command)) == sorted(OUTPUTS)


@pytest.mark.parametrize("words", OUTPUTS)
def test_they_are_json_schema_and_describe_the_examples_on_the_page(words: str) -> None:
    Draft202012Validator.check_schema(validator(words).schema)
    for example in EXAMPLES.get(words, ()):
        documented(words, example)


def properties(words: str) -> Iterator[list[str]]:
    """The fields of an object that a command prints, or of an item of its list, for each kind of output."""
    schema = validator(words).schema

    def resolved(node: Any) -> Any:
        return schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node

    for kind in schema.get("anyOf", [schema]):
        found = resolved(kind)
        yield list(resolved(found.get("items", found))["properties"])


def test_every_output_has_a_row_or_an_example_or_is_that_of_another_command() -> None:
    for words, cell in ROWS:
        assert re.findall(r"`(\w+)`", cell) in list(properties(words)), words
    same = {"sweep status", "sweep watch", "watch", "bench run"}
    assert set(OUTPUTS) - {words for words, _ in ROWS} - set(EXAMPLES) == same


def test_other_fields_and_missing_ones_are_refused() -> None:
    record = json.loads(EXAMPLES["status"][0])
    for wrong in ({**record, "colour": "blue"}, {name: record[name] for name in record if name != "stages"}):
        assert not validator("status").is_valid(wrong)


def test_they_are_printed(types: Types) -> None:
    assert json.loads(types("schema", "output").output)["commands"].keys() == OUTPUTS.keys()
    assert types("schema", "outputs").code == ExitCode.USAGE
