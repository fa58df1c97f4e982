"""What a command has printed with ``--json``, held against its shipped schema."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from trtllm_hpc.config.schemas import schemas


def documented(command: str, output: str) -> Any:
    """Parse the output of a command, e.g. ``bench compare``; the test fails if its schema refuses it."""
    record = json.loads(output)
    wrong = [f"{error.json_path}: {error.message}" for error in validator(command).iter_errors(record)]
    assert wrong == [], f"not what docs/reference/json.md says of {command}"
    return record


@cache
def validator(command: str) -> Draft202012Validator:
    """The validator of a command's output."""
    text = schemas()[command.replace(" ", "-")].read_text(encoding="utf-8")
    return Draft202012Validator(json.loads(text))
