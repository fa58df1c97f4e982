from __future__ import annotations

from pathlib import Path

from trtllm_hpc.client.options import OPTIONS


def test_the_document_lists_each_option() -> None:
    document = Path(__file__).parents[2] / "docs" / "client.md"
    rows = [line for line in document.read_text(encoding="utf-8").splitlines() if line.startswith("| `--")]
    assert rows == [
        f"| `{it.flag}` | `{it.text}` | `{it.inputs[-1]}` | {it.help.removesuffix('  [repeatable]')} |"
        for it in OPTIONS
    ]
