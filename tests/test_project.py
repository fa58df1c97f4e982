"""What stands around the code: documents, metadata, linters."""

from __future__ import annotations

import ast
import re
import runpy
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


def test_no_hint_has_a_placeholder_where_the_run_or_the_job_is_known() -> None:
    """Help texts and docs have RUN and JOB; `hint=` and `next:` are typed as they are."""
    found = []
    for file in sorted((ROOT / "trtllm_hpc").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            hint = node.value if isinstance(node, ast.keyword) and node.arg == "hint" else None
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "hint":
                hint = node.value
            if isinstance(node, ast.JoinedStr) and "next: " in ast.unparse(node):
                hint = node
            if hint is not None and re.search(r"\b(RUN|JOB)\b(?!\.)", ast.unparse(hint)):
                found.append(f"{file}: {ast.unparse(hint)}")
    assert found == []
