"""Files that are generated from the package's types. ``make golden`` writes them; this never does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.generate import ROOT, SCHEMAS, documents

DOCUMENTS = documents()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_they_are_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == DOCUMENTS[path], (
        f"{path.relative_to(ROOT)} is not what the types say; if they should differ, run 'make golden'"
    )


def test_every_schema_is_generated() -> None:
    assert {path for path in SCHEMAS.iterdir()} <= DOCUMENTS.keys()
