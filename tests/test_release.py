"""What is released: the wheel and the sdist, and the files around them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml

import trtllm_hpc
from tests.test_project import DOCUMENTS, ROOT

SETTINGS = ConfigParser()
SETTINGS.read(ROOT / "setup.cfg")
EXTRAS = SETTINGS["options.extras_require"]
WORKFLOW = ROOT / ".github/workflows/ci.yml"
INSTALL = next((ROOT / "docs").rglob("install.md"))
PACKAGED = ("trtllm_hpc/", "templates/", "jobs/", "slurm/")
"""The folders that the wheel holds; all but the first below ``trtllm_hpc/``."""


def tracked() -> list[str]:
    """Return the files of the checkout, as git knows them."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.mark.thorough
@pytest.mark.long
def test_the_wheel_has_every_file_and_works_outside_the_checkout(tmp_path: Path) -> None:
    pins = {"UV_CONSTRAINT": str(ROOT / "constraints.txt")} if sys.version_info >= (3, 11) else {}
    pythons = [os.path.realpath(sys.executable), "/no/such/python3"]
    command = [str(ROOT / ".ci/wheels"), str(Path(sys.executable).parent), str(tmp_path), *pythons]
    done = subprocess.run(command, env=os.environ | pins, capture_output=True, text=True, check=False)
    assert "a server was submitted, asked and measured" in done.stdout, done.stdout + done.stderr
    last = "error: the wheel does not work with Python /no/such/python3 (see above)."
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, last)
    packaged = {name for name in tracked() if name.startswith(PACKAGED)}
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert held == {f"trtllm_hpc/{name.removeprefix('trtllm_hpc/')}" for name in packaged}
        for name in packaged:
            assert wheel.read(f"trtllm_hpc/{name.removeprefix('trtllm_hpc/')}") == (ROOT / name).read_bytes()
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    assert held >= packaged | {
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "SECURITY.md",
        str(INSTALL.relative_to(ROOT)),
    }
    assert not any(name.startswith("tests") for name in held)


def test_every_extra_that_is_named_exists() -> None:
    sources = [*DOCUMENTS, *(ROOT / "docs").rglob("*.py"), *(ROOT / "docs").rglob("*.ipynb")]
    named = set()
    for source in [*sources, *(ROOT / "trtllm_hpc").rglob("*.py")]:
        text = source.read_text(encoding="utf-8")
        found = re.findall(r"(?:trtllm-hpc|\.whl|'\.)\[([a-z,]+)\]", text)
        found += re.findall(r"\bextras? `(\w+)`", text)
        named |= {(extra, source.name) for several in found for extra in several.split(",")}
    assert [(extra, source) for extra, source in named if extra not in EXTRAS] == []
    assert {"notebook", "reference", "report"} <= {extra for extra, _ in named}
    rows = re.findall(r"(?m)^\| `?(\w+)`? \|.* 3\.\d+ to 3\.\d+ \|$", INSTALL.read_text())
    assert sorted(rows) == sorted(["none", *EXTRAS])


def test_no_document_installs_by_a_name_that_the_index_does_not_have() -> None:
    for document in [*DOCUMENTS, *(ROOT / "docs").rglob("*.py"), *(ROOT / "docs").rglob("*.ipynb")]:
        text = document.read_text(encoding="utf-8")
        assert not re.search(r"pip install (-\S+ )*'?trtllm-hpc\b(?!.* @ )", text), document


def test_the_same_pythons_are_declared_and_tried() -> None:
    declared = re.findall(r"\b3\.1\d\b", SETTINGS["metadata"]["classifiers"])
    [tried] = re.findall(r"(?m)^PYTHONS \?= (.*)$", (ROOT / "Makefile").read_text())
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    assert tried.split() == jobs["wheels"]["strategy"]["matrix"]["python"] == [*dict.fromkeys(declared)]


def test_the_changelog_begins_with_what_is_not_released_and_the_version() -> None:
    headings = re.findall(r"(?m)^## (.*)$", (ROOT / "CHANGELOG.md").read_text())
    assert headings[0] == "Unreleased"
    assert headings[1].split(" ")[0] == trtllm_hpc.__version__
