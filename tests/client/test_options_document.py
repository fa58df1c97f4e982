"""The table of options in docs/how-to/client.md."""

from pathlib import Path

from trtllm_hpc.cli.client import _TYPED as TYPED
from trtllm_hpc.client.request import BY_NAME, RequestOption


def row(option: RequestOption) -> str:
    names = (option.text, option.core, option.llm_api, option.openai)
    cells = [f"`{name}`" if name else "" for name in names]
    return (
        "| "
        + " | ".join([f"`{option.flag if option.name in TYPED else option.name}`", *cells, option.help])
        + " |"
    )


def test_the_document_lists_each_option() -> None:
    document = Path(__file__).parents[2] / "docs" / "how-to" / "client.md"
    table = document.read_text(encoding="utf-8").partition("## Options of a request")[2]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert rows == [row(option) for option in BY_NAME.values()]
