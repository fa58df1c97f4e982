from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from trtllm_hpc.logs.printing import GrowingLog
from trtllm_hpc.logs.reading import LONGEST_LINE_BYTES, lines_of, quoted, seek_last_lines


@pytest.mark.parametrize("text", [b"", b"a", b"a\n", b"a\nb", b"a\nb\n", b"\n\n\n", b"a\n\nb\n"])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 10])
def test_last_lines_are_those_of_splitlines(tmp_path: Path, text: bytes, count: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(text)
    with path.open("rb") as log:
        seek_last_lines(log, count)
        assert (
            log.read().splitlines()
            == text.splitlines()[len(text.splitlines()) - count if count < len(text.splitlines()) else 0 :]
        )


def test_last_lines_across_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtllm_hpc.logs.reading._BLOCK_BYTES", 7)
    path = tmp_path / "log"
    lines = [f"line {number}\n".encode() for number in range(50)]
    path.write_bytes(b"".join(lines))
    for count in (1, 2, 13, 49, 50, 51):
        with path.open("rb") as log:
            seek_last_lines(log, count)
            assert log.readlines() == lines[-count:]


def test_a_line_without_end_comes_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (2 * LONGEST_LINE_BYTES + 5))
    with path.open("rb") as log:
        assert [len(line) for line in lines_of(log)] == [LONGEST_LINE_BYTES, LONGEST_LINE_BYTES, 5]


def test_a_growing_log_gives_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    growing = GrowingLog(path)
    assert list(growing.new_lines()) == []
    with path.open("ab", buffering=0) as log:
        log.write(b"one\ntw")
        assert list(growing.new_lines()) == [b"one\n"]
        log.write(b"o\nthr")
        assert list(growing.new_lines()) == [b"two\n"]
    assert list(growing.new_lines(is_over=True)) == [b"thr"]
    assert list(growing.new_lines(is_over=True)) == []


HOSTILE = "\x1b]0;owned\x07 \x1b[31mred\x1b[0m \x1b[2J\x9b31m \x1bc\x08 \u202egnp.exe\u2066 \u200b end"


def test_a_quoted_text_has_no_colours_and_nothing_that_a_terminal_obeys() -> None:
    shown = quoted(HOSTILE)
    assert shown == "\\x1b]0;owned\\x07 red  \\x1bc\\x08 \\u202egnp.exe\\u2066 \\u200b end"
    assert shown == quoted(shown)
    assert all(unicodedata.category(it) not in ("Cc", "Cf") for it in shown)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer c2VjcmV0LWtleQ==", "Authorization: Bearer ***"),
        ("401 for hf_abcdefghijKLMN, try again", "401 for hf_***, try again"),
        ("openai key sk-proj-1234_abcd5678.", "openai key sk-***."),
        ("export OPENAI_API_KEY='abc'", "export OPENAI_API_KEY='***'"),
        ('{"HF_TOKEN": "x1", "a": 1}', '{"HF_TOKEN": "***", "a": 1}'),
        ("AWS_SECRET_ACCESS_KEY=ab/cd+ef WANDB_API_KEY=1", "AWS_SECRET_ACCESS_KEY=*** WANDB_API_KEY=***"),
        ("x-api-key: 12345", "x-api-key: ***"),
        ("our own key 0123-mine", "our own key ***"),
        ("KEY_TOKEN_COUNT=5, eos_token=2, task-12345678, the bearer of news", None),
    ],
)
def test_keys_and_tokens_in_a_quoted_text_are_masked(text: str, shown: str | None) -> None:
    assert quoted(text, "0123-mine", "") == (text if shown is None else shown)
    assert quoted(quoted(text, "0123-mine")) == (text if shown is None else shown)
