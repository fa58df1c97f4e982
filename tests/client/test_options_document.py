"""The table of options in docs/how-to/client.md."""

from pathlib import Path

from trtllm_hpc.client.options import BY_NAME, RequestOption


def row(option: RequestOption) -> str:
    names = (option.text, option.core, option.llm_api, option.openai)
    cells = [f"`{name}`" if name else "" for name in names]
    return "| " + " | ".join([f"`{option.flag}`", *cells, option.help]) + " |"


def test_the_document_lists_each_option() -> None:
    document = Path(__file__).parents[2] / "docs" / "how-to" / "client.md"
    rows = [line for line in document.read_text(encoding="utf-8").splitlines() if line.startswith("| `--")]
    assert rows == [row(option) for option in BY_NAME.values()]
