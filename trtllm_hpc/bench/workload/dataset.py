"""Prompts from a file: a JSON list, or one JSON object a line, in any of several layouts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from trtllm_hpc.bench.workload.request import Request, WorkloadSpec, file_error
from trtllm_hpc.errors import ConfigError

OUTPUT_LENGTH_KEYS = ("max_tokens", "output_tokens", "output_length")
_PROMPT_KEYS = ("prompt", "text", "text_input", "input", "question")
_IDS_KEYS = ("token_ids", "input_ids")
_ANSWER_KEYS = ("output", "completion", "answer")
_CONVERSATION_KEYS = ("conversations", "messages", "turns")
_ASSISTANT_ROLES = frozenset({"assistant", "gpt", "chatgpt", "bing", "bard", "model"})
_MAX_TOKENS = 10_000_000
_LAYOUTS = "a list of JSON objects, or one JSON object a line"


class Entry(NamedTuple):
    """One JSON object of a file."""

    path: Path
    line: int
    """Where it begins, counted from 1."""
    values: dict[str, Any]
    due_s: float | None = None
    """In a trace: when it is due, after the first one."""

    def error(self, message: str, *, hint: str | None = None) -> ConfigError:
        """Return an error at this entry."""
        return file_error(self.path, self.line, message, hint=hint)

    def length(self, keys: Sequence[str]) -> int | None:
        """Return the first of the keys that the entry has, as a number of tokens; ``None`` if it has none."""
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if type(value) is not int or not 1 <= value <= _MAX_TOKENS:
                raise self.error(f"{key} must be a whole number from 1 to {_MAX_TOKENS:,}; found {value!r}")
            return value
        return None

    def seconds(self, in_seconds: str, in_milliseconds: str) -> float | None:
        """Return the value of the one key or the other in seconds; ``None`` if it has neither."""
        for key, unit_s in ((in_seconds, 1.0), (in_milliseconds, 0.001)):
            value = self.values.get(key)
            if value is None:
                continue
            if type(value) not in (int, float) or not abs(value) < 1e15:
                raise self.error(f"{key} must be a number; found {value!r}")
            return float(value) * unit_s
        return None


def read_entries(path: Path) -> list[Entry]:
    """Return all entries of the file, in their order.

    Raises ConfigError if it cannot be read, or has another layout; with the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or str(error)
        raise file_error(path, None, f"cannot be read: {reason}", hint="--file FILE") from None
    except UnicodeDecodeError as error:
        raise file_error(path, None, f"is not UTF-8 text: byte {error.start + 1} is invalid") from None
    found = _parse_list(path, text) if text.lstrip().startswith("[") else _parse_lines(path, text)
    entries = []
    for line, value in found:
        if not isinstance(value, dict):
            message = f"each entry must be a JSON object in braces; found {type(value).__name__}"
            raise file_error(path, line, message)
        entries.append(Entry(path, line, value))
    if not entries:
        raise file_error(path, None, f"has no entries; expected {_LAYOUTS}")
    return entries


def _parse_lines(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    # Not str.splitlines: it also splits at characters that JSON allows within a string.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise _not_json(path, number, error) from None


def _parse_list(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """Decode the items of a JSON list one by one, to know their lines."""
    decoder = json.JSONDecoder()
    at = _skip_space(text, text.index("[") + 1)
    line, counted = 1, 0
    while at < len(text) and text[at] != "]":
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise _not_json(path, text.count("\n", 0, getattr(error, "pos", at)) + 1, error) from None
        yield line, value
        at = _skip_space(text, at)
        if text[at : at + 1] == ",":
            at = _skip_space(text, at + 1)
        elif text[at : at + 1] != "]":
            break
    if text[at:].strip() != "]":
        message = "is not JSON: expected ',' or the end of the list, ']'"
        raise file_error(path, text.count("\n", 0, at) + 1, message)


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _not_json(path: Path, line: int, error: Exception) -> ConfigError:
    reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
    return file_error(path, line, f"is not JSON: {reason}; expected {_LAYOUTS}")


def read_prompts(spec: WorkloadSpec) -> list[Request | None]:
    """Return the prompt of each entry of the file; ``None`` for an entry without one.

    Raises ConfigError if an entry cannot be read, or none has a prompt; with file and line.
    """
    found = [request_of(entry, spec) for entry in read_entries(spec.file)]
    if not any(found):
        raise file_error(spec.file, None, "all prompts are empty")
    return found


def request_of(entry: Entry, spec: WorkloadSpec) -> Request | None:
    """Return the prompt of an entry, not counted yet; ``None`` if it is empty, as of an empty conversation.

    Layouts: ``input`` and ``instruction`` as in upstream's data sets, whose prompt is ``input + ' ' +
    instruction`` (``benchmark_core_model.py`` of tensorrtllm_backend v0.16.0); a prompt or token ids alone;
    ``messages`` of chats and ``conversations`` of ShareGPT, whose prompt is everything before the first
    answer. The answer's limit is the entry's, the words of its answer times ``tokens_per_word``, or
    ``max_tokens``. Raises ConfigError if it has none of these, wrong types, or ids that the model does not
    take; with the line.
    """
    tokens = entry.length(OUTPUT_LENGTH_KEYS)
    request = Request(tokens or spec.settings.max_tokens, due_s=entry.due_s, source=f"line {entry.line}")
    for key in _IDS_KEYS:
        if entry.values.get(key) is not None:
            return replace(request, token_ids=_ids(entry, key, spec))
    for key in _CONVERSATION_KEYS:
        if key in entry.values:
            prompt, answer = _conversation(entry, key)
            break
    else:
        prompt, answer = _prompt(entry), _text(entry, _ANSWER_KEYS)
    if not prompt.strip():
        return None
    if tokens is None and answer is not None:
        tokens = max(1, int(len(answer.split()) * spec.workload.tokens_per_word))
    # JSON can contain half of a surrogate pair ("\ud800"), which no server takes.
    valid = prompt.encode("utf-8", errors="replace").decode("utf-8")
    return replace(request, prompt=valid, max_tokens=tokens or request.max_tokens)


def _prompt(entry: Entry) -> str:
    if "instruction" in entry.values:
        return " ".join(_text(entry, [key]) or "" for key in ("input", "instruction"))
    prompt = _text(entry, _PROMPT_KEYS)
    if prompt is None:
        known = ", ".join((*_PROMPT_KEYS, "instruction", *_IDS_KEYS, *_CONVERSATION_KEYS))
        found = ", ".join(entry.values) or "nothing"
        raise entry.error(f"has no prompt: expected one of {known}; found {found}")
    return prompt


def _text(entry: Entry, keys: Sequence[str]) -> str | None:
    for key in keys:
        value = entry.values.get(key)
        if value is None:
            continue
        if not isinstance(value, str):
            raise entry.error(f"{key} must be text; found {type(value).__name__}")
        return value
    return None


def _ids(entry: Entry, key: str, spec: WorkloadSpec) -> tuple[int, ...]:
    ids = entry.values[key]
    if not isinstance(ids, list) or not ids or not all(type(token) is int and token >= 0 for token in ids):
        raise entry.error(f"{key} must be a list of token ids, whole numbers of at least 0")
    if not (spec.takes_token_ids or spec.ids_allowed):
        hint = "--model tensorrt_llm, or --protocol openai"
        raise entry.error("has token ids, but the model takes texts", hint=hint)
    size = None if spec.vocabulary is None else spec.vocabulary.size
    if size is not None and max(ids) >= size:
        raise entry.error(f"token id {max(ids)} is outside the model's vocabulary of {size:,}")
    return tuple(ids)


def _conversation(entry: Entry, key: str) -> tuple[str, str | None]:
    """The turns before the first answer as one prompt, and that answer."""
    prompts: list[str] = []
    for role, text, _ in _messages(entry, key):
        if role in _ASSISTANT_ROLES:
            return "\n".join(prompts), text
        prompts.append(text)
    return "\n".join(prompts), None


def turns_of(entry: Entry) -> list[Entry]:
    """Return an entry for each turn of the user in a whole conversation; one without turns as it is."""
    key = next((key for key in _CONVERSATION_KEYS if key in entry.values), None)
    if key is None:
        return [entry]
    common = {key: entry.values[key] for key in OUTPUT_LENGTH_KEYS if key in entry.values}
    first: dict[str, Any] = {key: entry.values.get(key) for key in ("due_s", "timestamp")}
    turns: list[dict[str, Any]] = []
    for role, text, turn in _messages(entry, key):
        if role == "system":
            first["said"] = [{"role": role, "content": text}]
        elif role not in _ASSISTANT_ROLES and text.strip():
            turns.append({**common, **turn, "prompt": text})
        elif turns:
            turns[-1]["answer"] = text
    return [entry._replace(values={**(first if turn is turns[0] else {}), **turn}) for turn in turns]


def _messages(entry: Entry, key: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    turns = entry.values[key]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise entry.error(f"{key} must be a list of turns, each a JSON object")
    for turn in turns:
        yield str(turn.get("from", turn.get("role", ""))).lower(), _turn_text(entry, turn), turn


def _turn_text(entry: Entry, turn: dict[str, Any]) -> str:
    content = turn.get("value", turn.get("content", turn.get("text")))
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "\n".join(text for text in texts if isinstance(text, str))
    if not isinstance(content, str):
        raise entry.error("a turn must have text in value, content or text")
    return content
