"""docs/reference/python.md against the code: it names everything public, with the right arguments."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import trtllm_hpc

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
ROWS = "\n".join(line.split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| `"))
CODE = re.findall(r"`([^`]+)`", ROWS)
CALLS = [it for it in CODE if it.endswith(")")]
OBJECTS = {
    "run": trtllm_hpc.Run,
    "client": trtllm_hpc.Client,
    "measurement": trtllm_hpc.Measurement,
    "sweep": trtllm_hpc.Sweep,
}


def called(name: str) -> Any:
    """What the page calls ``submit``, ``Run.find`` or ``run.wait``."""
    first, _, rest = name.partition(".")
    found = (OBJECTS.get(first) if rest else None) or getattr(trtllm_hpc, first)
    return getattr(found, rest) if rest else found


@pytest.mark.parametrize("call", CALLS)
def test_each_call_has_these_arguments(call: str) -> None:
    name, words = call.removesuffix(")").split("(")
    parameters = inspect.signature(called(name)).parameters.values()
    written: list[str] = []
    for it in parameters:
        if it.kind is it.KEYWORD_ONLY and "*" not in written:
            written.append("*")
        if it.name != "self":
            written.append(f"**{it.name}" if it.kind is it.VAR_KEYWORD else it.name)
    assert words == ", ".join(written)


def test_every_public_name_is_on_the_page() -> None:
    words = set(re.findall(r"\w+", PAGE))
    assert set(trtllm_hpc.__all__) <= words
    for called_as, kind in OBJECTS.items():
        for name in vars(kind):
            if not name.startswith("_"):
                assert f"{called_as}.{name}" in PAGE or f"{kind.__name__}.{name}(" in PAGE, name


@pytest.mark.parametrize("name", re.findall(rf"`((?:{'|'.join(OBJECTS)})\.\w+)`", ROWS))
def test_every_attribute_on_the_page_is_there(name: str) -> None:
    of, _, attribute = name.partition(".")
    kind = OBJECTS[of]
    assert hasattr(kind, attribute) or f"self.{attribute} = " in inspect.getsource(kind)


def test_the_examples_on_the_page_compile() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 6
    for example in examples:
        compile(example, "docs/reference/python.md", "exec")
