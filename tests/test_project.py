"""What stands around the code: documents, metadata, linters."""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path

from tools.site import slug

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")])
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(#[^)\s]*)?\)")
SETUP = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")


def prose(document: Path) -> str:
    """The text without its blocks of code."""
    return re.sub(r"(?ms)^```.*?^```$", "", document.read_text(encoding="utf-8"))


def anchors(document: Path) -> set[str]:
    """Each heading as GitHub and the site link to it."""
    return {slug(heading) for heading in re.findall(r"(?m)^#+ (.+)$", prose(document))}


def test_every_relative_link_leads_somewhere() -> None:
    for document in DOCUMENTS:
        for target, anchor in LINK.findall(prose(document)):
            path = (document.parent / target).resolve() if target else document
            assert path.exists(), f"{document.name} links to {target}"
            if anchor:
                assert anchor[1:] in anchors(path), f"{document.name} links to {target}{anchor}"


def test_a_package_index_shows_links_that_work_or_none() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    published = SETUP["description"](readme, "https://example.org/me/trtllm-hpc")
    assert "](https://example.org/me/trtllm-hpc/blob/HEAD/docs/how-to/keyed-proxy.md)" in published
    assert LINK.findall(published) == []
    plain = SETUP["description"](readme, None)
    assert LINK.findall(plain) == []
    assert "(`docs/how-to/keyed-proxy.md` in the source)" in plain
    assert SETUP["project_urls"](None) == {}


def test_a_program_missing_from_the_environment_names_the_next_command() -> None:
    done = subprocess.run(
        [ROOT / ".ci/in-venv", "no-such-program"], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.rpartition(". ")[2]) == (1, "Type: make setup\n")
