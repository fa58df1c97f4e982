"""The house: who may import whom, and what importing costs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import trtllm_hpc

PACKAGE = Path(trtllm_hpc.__file__).parent

# docs/decisions and the design's table: a floor imports only floors below it.
FLOORS = {
    "cli": 7, "__main__": 7.5,
    "sandbox": 6, "report": 6,
    "checks": 5, "lifecycle": 5, "logs": 5, "client": 5, "bench": 5,
    "render": 4,
    "plan": 3,
    "config": 2,
    "runs": 1.5,
    "versions": 1, "states": 1, "paths": 1, "errors": 1,
    "": 0,
}  # fmt: skip
APART = {"runtime", "reference"}
SIDEWAYS = {
    ("lifecycle", "logs"), ("lifecycle", "bench"), ("client", "logs"), ("bench", "client"),
    ("checks", "bench"), ("plan", "reference"),
}  # fmt: skip
"""On one floor, and one way only: who tells of a failure reads the logs, who measures a server asks it, who
checks or follows a job knows what its benchmark reads and writes. The reference backend knows its own models,
and nothing of the plan."""
DATA = {"templates", "jobs", "slurm"}


def modules() -> list[Path]:
    return sorted(file for file in PACKAGE.rglob("*.py") if "__pycache__" not in file.parts)


def unit(parts: tuple[str, ...]) -> str:
    """``cli`` for ``trtllm_hpc.cli.submit``."""
    return parts[1] if len(parts) > 1 else ""


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


def test_no_module_imports_a_higher_floor() -> None:
    wrong = []
    for file in modules():
        own = unit(("trtllm_hpc", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix("__init__")
        if own in APART:
            continue
        for line, name in imports(file):
            other = unit(tuple(name.split(".")))
            if not name.startswith("trtllm_hpc") or other in {own, "runtime", "__version__"} | DATA:
                continue
            if (own, other) in SIDEWAYS:
                continue
            if other not in FLOORS or FLOORS[other] >= FLOORS[own]:
                wrong.append(f"{file.relative_to(PACKAGE)}:{line} imports {name}")
    assert wrong == []


def test_every_module_has_a_floor() -> None:
    names = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.suffix in (".py", "")}
    assert names - {"__init__", "__pycache__"} <= set(FLOORS) | APART | DATA


def test_what_travels_into_the_job_needs_only_the_standard_library() -> None:
    allowed = {"trtllm_hpc.errors", "trtllm_hpc.paths", "trtllm_hpc.runtime", "mpi4py"}
    files = [
        PACKAGE / "errors.py",
        PACKAGE / "paths.py",
        PACKAGE / "__init__.py",
        *PACKAGE.glob("runtime/checks/*.py"),
        *PACKAGE.glob("runtime/*.py"),
    ]
    assert len(files) > 10
    for file in files:
        for line, name in imports(file):
            own = ".".join(name.split(".")[:2])
            known = name.split(".")[0] in sys.stdlib_module_names or own in allowed
            assert known, f"{file.relative_to(PACKAGE)}:{line} imports {name}"


def test_mpi_is_imported_by_the_preflight_alone() -> None:
    users = {file.name for file in modules() for _, name in imports(file) if name.startswith("mpi4py")}
    assert users == {"preflight.py"}


HEAVY = ("numpy", "torch", "rich", "grpc", "submitit", "pydantic", "jinja2", "ruamel", "tritonclient")


def loaded_by(statement: str) -> set[str]:
    script = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(answer.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "module", ["trtllm_hpc", "trtllm_hpc.cli", "trtllm_hpc.cli.submit", "trtllm_hpc.runs"]
)
def test_importing_takes_no_heavy_library(module: str) -> None:
    assert loaded_by(f"import {module}") & set(HEAVY) == set()


def test_importing_the_package_opens_no_file_but_its_own_code() -> None:
    script = (
        "import sys\n"
        "seen = []\n"
        "sys.addaudithook(lambda event, arguments: seen.append((event, str(arguments[0])))"
        " if event in ('open', 'subprocess.Popen', 'os.posix_spawn', 'os.fork') else None)\n"
        "import trtllm_hpc, trtllm_hpc.cli\n"
        "print([what for what in seen if not what[1].endswith(('.py', '.pyc'))])"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
