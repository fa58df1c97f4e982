"""What a command has printed with ``--json``, held against its shipped schema."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from trtllm_hpc.cli.init import schema


def documented(command: str, output: str) -> Any:
    """Parse the output of a command, e.g. ``bench compare``; the test fails if its schema refuses it."""
    record = json.loads(output)
    wrong = [f"{error.json_path}: {error.message}" for error in validator(command).iter_errors(record)]
    assert wrong == [], f"not what the schema says of {command}"
    return record


@cache
def validator(command: str) -> Draft202012Validator:
    """The validator of a command's output."""
    output = schema("output")
    return Draft202012Validator({**output["commands"][command], "$defs": output["$defs"]})
