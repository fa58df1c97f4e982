"""What an entry of a file says: prompt or ids, lengths, time. Each layout by the names it uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_hpc.bench.workload.entries import Entry
from trtllm_hpc.bench.workload.wanted import misread

_PROMPTS = ("prompt", "text", "text_input", "input", "question")
_IDS = ("token_ids", "input_ids")
OUTPUT_LENGTHS = ("max_tokens", "output_tokens", "output_length")
_ANSWERS = ("output", "completion", "answer")
_CONVERSATIONS = ("conversations", "messages")
_ANSWERING = frozenset({"assistant", "gpt", "chatgpt", "bing", "bard", "model"})
_MOST_TOKENS = 10_000_000


@dataclass(frozen=True)
class Question:
    """What one entry asks."""

    line: int
    source: str
    """Where it stands, for people."""
    prompt: str | None = None
    token_ids: tuple[int, ...] | None = None
    """Exactly one of the two is given."""
    max_tokens: int | None = None
    """As the entry says; ``None`` if it does not."""
    due_s: float | None = None


def question_of(path: Path, entry: Entry, tokens_per_word: float) -> Question | None:
    """The question of an entry; ``None`` for one that asks nothing, such as an empty conversation.

    Layouts: ``input`` and ``instruction`` as in upstream's data sets, of which
    the prompt is ``input + ' ' + instruction``
    (``benchmark_core_model.py`` of tensorrtllm_backend v0.16.0); a prompt or
    ids alone; ``messages`` of chats; ``conversations`` of ShareGPT, of which
    what comes before the first answer is asked.

    Raises:
        ConfigError: it has none of these, or wrong types; with the line.
    """
    values, line, source = entry.values, entry.line, f"line {entry.line}"
    tokens = length_of(path, entry, OUTPUT_LENGTHS)
    for key in _IDS:
        if values.get(key) is not None:
            return Question(line, source, token_ids=_ids(path, entry, key), max_tokens=tokens)
    for key in _CONVERSATIONS:
        if key in values:
            prompt, answer = _turns(path, entry, key)
            break
    else:
        prompt, answer = _prompt(path, entry), _text(path, entry, _ANSWERS)
    if not prompt.strip():
        return None
    if tokens is None and answer is not None:
        tokens = max(1, int(len(answer.split()) * tokens_per_word))
    # JSON can write half a letter ("\ud800"), which no server takes.
    whole = prompt.encode("utf-8", errors="replace").decode("utf-8")
    return Question(line, source, whole, max_tokens=tokens)


def length_of(path: Path, entry: Entry, keys: Sequence[str]) -> int | None:
    """The first of the keys that the entry has, as a number of tokens; ``None`` if it has none."""
    for key in keys:
        value = entry.values.get(key)
        if value is None:
            continue
        if type(value) is not int or not 1 <= value <= _MOST_TOKENS:
            raise misread(path, entry.line, f"{key} must be a whole number from 1 on; found {value!r}")
        return value
    return None


def _prompt(path: Path, entry: Entry) -> str:
    if "instruction" in entry.values:
        parts = [_text(path, entry, [key]) or "" for key in ("input", "instruction")]
        return " ".join(parts)
    prompt = _text(path, entry, _PROMPTS)
    if prompt is None:
        known = ", ".join((*_PROMPTS, "instruction", *_IDS, *_CONVERSATIONS))
        found = ", ".join(entry.values) or "nothing"
        raise misread(path, entry.line, f"has no prompt: expected one of {known}; found {found}")
    return prompt


def _text(path: Path, entry: Entry, keys: Sequence[str]) -> str | None:
    for key in keys:
        value = entry.values.get(key)
        if value is None:
            continue
        if not isinstance(value, str):
            raise misread(path, entry.line, f"{key} must be text; found {type(value).__name__}")
        return value
    return None


def _ids(path: Path, entry: Entry, key: str) -> tuple[int, ...]:
    ids = entry.values[key]
    if not isinstance(ids, list) or not ids or not all(type(token) is int and token >= 0 for token in ids):
        raise misread(path, entry.line, f"{key} must be a list of token ids, whole numbers from 0 on")
    return tuple(ids)


def _turns(path: Path, entry: Entry, key: str) -> tuple[str, str | None]:
    """What is asked before the first answer, and that answer."""
    turns = entry.values[key]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise misread(path, entry.line, f"{key} must be a list of turns, each a JSON object")
    asked: list[str] = []
    for turn in turns:
        role = str(turn.get("from", turn.get("role", "")))
        text = _content(path, entry, turn)
        if role.lower() in _ANSWERING:
            return "\n".join(asked), text
        asked.append(text)
    return "\n".join(asked), None


def _content(path: Path, entry: Entry, turn: dict[str, Any]) -> str:
    """The words of one turn: a text, or the text among its parts."""
    content = turn.get("value", turn.get("content"))
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "\n".join(text for text in texts if isinstance(text, str))
    if not isinstance(content, str):
        raise misread(path, entry.line, "a turn must have text in value or content")
    return content
