"""The house: who may import whom, and what importing costs."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import trtllm_hpc

PACKAGE = Path(trtllm_hpc.__file__).parent


def modules() -> list[Path]:
    return sorted(file for file in PACKAGE.rglob("*.py") if "__pycache__" not in file.parts)


@cache
def imports(file: Path) -> list[tuple[int, str]]:
    """Line and name of each imported module that is imported when the code runs."""
    return list(_imports(file))


def _imports(file: Path) -> Iterator[tuple[int, str]]:
    tree = ast.parse(file.read_text())
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for body in node.body
        for inner in ast.walk(body)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} is relative"
            assert node.module is not None
            if node.module == "trtllm_hpc":
                yield from ((node.lineno, f"trtllm_hpc.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module


def test_the_architecture_page_names_the_rooms_in_the_order_that_import_linter_keeps() -> None:
    root = Path(__file__).parents[1]
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    contracts = toml.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [room.strip() for layer in contracts[0]["layers"] for room in layer.split("|")]
    rows = re.findall(r"^\| (`.*?) \|", (root / "docs/explanation/architecture.md").read_text(), re.MULTILINE)
    assert re.findall(r"`(\w+)/?`", "\n".join(rows)) == [room for room in layers if room != "__main__"]


def test_what_travels_into_the_job_needs_only_the_standard_library() -> None:
    # PyTorch is the image's, as mpi4py is: only what measures NCCL imports it.
    allowed = {"trtllm_hpc.errors", "trtllm_hpc.paths", "trtllm_hpc.runtime", "mpi4py", "torch"}
    files = [
        PACKAGE / "errors.py",
        PACKAGE / "paths.py",
        PACKAGE / "__init__.py",
        *PACKAGE.glob("runtime/**/*.py"),
    ]
    assert len(files) > 20
    for file in files:
        for line, name in imports(file):
            own = ".".join(name.split(".")[:2])
            known = name.split(".")[0] in sys.stdlib_module_names or own in allowed
            assert known, f"{file.relative_to(PACKAGE)}:{line} imports {name}"


def test_mpi_is_imported_only_by_steps_that_start_no_server() -> None:
    users = {file.name for file in modules() for _, name in imports(file) if name.startswith("mpi4py")}
    assert users == {"preflight.py", "steps.py"}, "steps.py is part of doctor --on-nodes"


HEAVY = ("numpy", "torch", "rich", "grpc", "submitit", "pydantic", "jinja2", "ruamel", "tritonclient")


def loaded_by(statement: str) -> set[str]:
    script = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(answer.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "module", ["trtllm_hpc", "trtllm_hpc.cli", "trtllm_hpc.cli.submit", "trtllm_hpc.runs.find"]
)
def test_importing_takes_no_heavy_library(module: str) -> None:
    assert loaded_by(f"import {module}") & set(HEAVY) == set()
