"""``python -m tests.schemas``: write what is generated from the types, for ``git diff`` to review."""

from __future__ import annotations

from tests.schemas.documents import documents

for path, text in documents().items():
    path.write_text(text, encoding="utf-8")
