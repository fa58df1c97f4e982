"""What the site changes in the pages: links out of ``docs/``, and anchors."""

from __future__ import annotations

import yaml

from tests.docs.blocks import ROOT
from tools.site import slug, within

PAGE = "See [layout](../../trtllm_hpc/plan/layout.py), [`LICENSE`](../../LICENSE) and [logs](../a.md#a)."


def test_links_out_of_the_pages_lead_to_the_published_source_or_become_text() -> None:
    assert within(PAGE, "explanation/architecture.md", None) == (
        "See layout (`trtllm_hpc/plan/layout.py` in the source), `LICENSE` and [logs](../a.md#a)."
    )
    published = within(PAGE, "explanation/architecture.md", "https://example.org/me/x")
    assert "[layout](https://example.org/me/x/blob/HEAD/trtllm_hpc/plan/layout.py)" in published
    assert "[logs](../a.md#a)" in published


def test_anchors_are_those_of_github() -> None:
    assert slug("Ready, and no longer") == "ready-and-no-longer"
    assert slug("`--on-nodes` and [more](x)") == "--on-nodes-and-morex"


def test_every_page_is_in_the_navigation() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = yaml.safe_dump(site["nav"])
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page not in listed] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110
