"""Read prompts from a file: JSON, JSON lines or CSV, in any of several layouts."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trtllm_hpc.bench.workload.prompt_source import TOKENIZER_HINT
from trtllm_hpc.bench.workload.request import (
    BY_TOKENIZER,
    BY_WORKLOAD,
    WorkloadRequest,
    WorkloadSpec,
    file_error,
    settings_error,
)
from trtllm_hpc.errors import ConfigError

OUTPUT_LENGTH_KEYS = ("max_tokens", "max_completion_tokens", "output_tokens", "output_length")
_PROMPT_KEYS = ("prompt", "text", "text_input", "input", "question")
_IDS_KEYS = ("token_ids", "input_ids")
_ANSWER_KEYS = ("output", "completion", "answer")
_CONVERSATION_KEYS = ("conversations", "messages", "turns")
_ROLES = dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model"), "assistant") | {
    "human": "user",
    "": "user",
}
_MAX_TOKENS = 10_000_000
_TOKENS_PER_WORD = 1.3
"""Assumed tokens per word of a recorded answer, TensorRT-LLM's default of ``--op-tokens-per-word``."""
_LAYOUTS = "a list of JSON objects, or one JSON object per line"
_COLUMNS = {
    "timestamp": "due_s",
    **dict.fromkeys(("contexttokens", "request tokens"), "input_length"),
    **dict.fromkeys(("generatedtokens", "response tokens"), "output_length"),
}
"""Columns of Azure's and BurstGPT's traces, in lower case, with the key of each."""


class DatasetEntry(NamedTuple):
    """A JSON object in a file."""

    path: Path
    line: int | None
    """Line number from 1; ``None`` in a JSON list."""
    number: int
    """Position among the entries of the file, from 1."""
    values: dict[str, Any]
    due_s: float | None = None
    """Due time in a trace, in seconds after the first entry."""

    @property
    def source(self) -> str:
        """Position for people."""
        return f"entry {self.number}" if self.line is None else f"line {self.line}"

    def error(self, message: str, *, hint: str | None = None) -> ConfigError:
        """Return an error at this entry."""
        where = f"entry {self.number}: " if self.line is None else ""
        return file_error(self.path, self.line, where + message, hint=hint)

    def first(self, keys: Sequence[str]) -> tuple[str, Any]:
        """Return the first of ``keys`` in the entry, and its value; ``None`` if it has none of them."""
        key = next((key for key in keys if self.values.get(key) is not None), "")
        value: Any = self.values.get(key)
        is_input = key in ("text_input", "max_tokens") and isinstance(value, list) and len(value) == 1
        return key, value[0] if is_input else value  # perf_analyzer writes lists of one value

    def length(self, keys: Sequence[str]) -> int | None:
        """Return the value of the first of ``keys`` as a number of tokens; ``None`` without any."""
        key, value = self.first(keys)
        if value is None or (type(value) is int and 1 <= value <= _MAX_TOKENS):
            return value
        raise self.error(f"{key} must be a whole number from 1 to {_MAX_TOKENS:,}; found {value!r}")

    def seconds(self, in_seconds: str, in_milliseconds: str) -> float | None:
        """Return the value of either key in seconds; ``None`` without both."""
        key, value = self.first((in_seconds, in_milliseconds))
        if value is None:
            return None
        if type(value) not in (int, float) or not abs(value) < 1e15:
            raise self.error(f"{key} must be a number; found {value!r}")
        return float(value) * (1.0 if key == in_seconds else 0.001)

    def text(self, keys: Sequence[str]) -> str | None:
        """Return the text of the first of ``keys``; ``None`` without any."""
        key, value = self.first(keys)
        if value is None or isinstance(value, str):
            return value
        raise self.error(f"{key} must be text; found {type(value).__name__}")

    @property
    def conversation(self) -> str | None:
        """The key of the entry's turns; ``None`` if it is not a conversation."""
        return next((key for key in _CONVERSATION_KEYS if key in self.values), None)


def read_entries(path: Path) -> list[DatasetEntry]:
    """Return all entries of the file in order.

    Raises ConfigError, with the line, if the file is unreadable or has an unknown layout.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or str(error)
        raise file_error(path, None, f"cannot be read: {reason}", hint="--file FILE") from None
    except UnicodeDecodeError as error:
        raise file_error(path, None, f"is not UTF-8 text: byte {error.start + 1} is invalid") from None
    is_table = any(column in text.partition("\n")[0].lower().split(",") for column in _COLUMNS)
    values = _rows(path, text) if is_table else _values(path, text)
    requests = ((line, request) for line, value in values for request in _requests(value))
    entries = []
    for number, (line, value) in enumerate(requests, 1):
        entry = DatasetEntry(path, line, number, value)
        if not isinstance(value, dict):
            raise entry.error(f"each entry must be a JSON object in braces; found {type(value).__name__}")
        entries.append(entry)
    if not entries:
        raise file_error(path, None, f"has no entries; expected {_LAYOUTS}")
    return entries


def _rows(path: Path, text: str) -> Iterator[tuple[int | None, Any]]:
    """Yield the requests of a CSV trace, which have only lengths; a failed request has length 1."""
    rows = csv.DictReader(text.splitlines())
    for row in rows:
        cells = {_COLUMNS[name.lower()]: cell for name, cell in row.items() if str(name).lower() in _COLUMNS}
        try:
            stamp = str(cells.pop("due_s")).partition("+")[0]
            due_s = float(np.datetime64(stamp, "ns").astype(int)) / 1e9 if ":" in stamp else float(stamp)
            yield rows.line_num, {"due_s": due_s, **{key: max(1, int(cell)) for key, cell in cells.items()}}
        except (KeyError, TypeError, ValueError):
            message = "needs a time and numbers of tokens, as in Azure's and BurstGPT's traces"
            raise file_error(path, rows.line_num, message) from None


def _values(path: Path, text: str) -> Iterable[tuple[int | None, Any]]:
    """Return the JSON values of a file with their lines; values of a document's list have no line."""
    # Not str.splitlines, which also splits at characters that JSON allows within a string.
    lines = [(line, words) for line, words in enumerate(text.split("\n"), 1) if words.strip()]
    first = lines[0][1].strip() if lines else "{}"
    if len(lines) != 1 and first[0] + first[-1] in ("{}", "[]"):
        return ((line, _parsed(path, words, line)) for line, words in lines)
    value = _parsed(path, text)
    if isinstance(value, dict) and isinstance(value.get("data"), list):  # genai-perf and perf_analyzer
        value = value["data"]
    is_chat = isinstance(value, list) and value and isinstance(value[0], dict) and "role" in value[0]
    return [(None, item) for item in value] if isinstance(value, list) and not is_chat else [(1, value)]


def _requests(value: Any) -> list[Any]:
    """Return the requests in a value: messages, or a layout of OpenAI, genai-perf or perf_analyzer."""
    if isinstance(value, list):
        return [{"messages": value}]
    inner = value.get("payload", value.get("body")) if isinstance(value, dict) else None
    return inner if isinstance(inner, list) else [inner if isinstance(inner, dict) else value]


def _parsed(path: Path, text: str, line: int = 1) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason, at = str(error), line
        if isinstance(error, json.JSONDecodeError):
            reason, at = error.msg, line + error.lineno - 1
        raise file_error(path, at, f"is not JSON: {reason}; expected {_LAYOUTS}") from None


def request_of(entry: DatasetEntry, spec: WorkloadSpec) -> WorkloadRequest | None:
    """Return the request of an entry, without token counts; ``None`` if the prompt is empty.

    Layouts: ``input`` and ``instruction`` as in TensorRT-LLM's data sets, whose prompt is ``input + ' ' +
    instruction`` (``benchmark_core_model.py`` of tensorrtllm_backend v0.16.0); a prompt or token IDs alone;
    ``messages`` of chats and ``conversations`` of ShareGPT, whose prompt is everything before the first
    answer, or all ``messages`` up to the user's last one if the model accepts messages; the first of
    ``turns``. The answer's limit is the entry's, 1.3 times the words of its answer, or ``max_tokens``. Raises
    ConfigError, with the line, for another layout, wrong types, or IDs that the model does not accept.
    """
    tokens = entry.length(OUTPUT_LENGTH_KEYS)
    limit = tokens or spec.settings.max_tokens
    request = WorkloadRequest(limit, due_s=entry.due_s, source=entry.source)
    ids_key, ids = entry.first(_IDS_KEYS)
    if ids is not None:
        if (
            not isinstance(ids, list)
            or not ids
            or not all(type(number) is int and number >= 0 for number in ids)
        ):
            raise entry.error(f"{ids_key} must be a list of token IDs, whole numbers of at least 0")
        if not (spec.takes_token_ids or spec.ids_allowed):
            hint = "--model tensorrt_llm, or --protocol openai"
            raise entry.error("has token IDs, but the model accepts text only", hint=hint)
        size = None if spec.vocabulary is None else spec.vocabulary.size
        if size is not None and max(ids) >= size:
            raise entry.error(f"token ID {max(ids)} is outside the model's vocabulary of {size:,}")
        return replace(request, token_ids=tuple(ids))
    if entry.conversation is not None:
        said = list(_messages(entry))[: 1 if entry.conversation == "turns" else None]
        is_answer = [role == "assistant" for role, *_ in said] + [True]
        end = is_answer.index(True)
        if spec.takes_messages and entry.conversation == "messages":
            end = max((at + 1 for at, is_one in enumerate(is_answer) if not is_one), default=0)
        prompt = "\n".join(text for _, text, _ in said[:end])
        answer = next((text for role, text, _ in said[end : end + 1] if role == "assistant"), None)
        if spec.takes_messages:
            plain = [{"role": role, "content": text} for role, text, _ in said]
            messages = [turn if "role" in turn else own for own, (*_, turn) in zip(plain, said, strict=True)]
            request = replace(request, messages=messages[:end])
    elif "instruction" in entry.values:
        prompt = " ".join(entry.text([key]) or "" for key in ("input", "instruction"))
        answer = entry.text(_ANSWER_KEYS)
    else:
        text, answer = entry.text(_PROMPT_KEYS), entry.text(_ANSWER_KEYS)
        if text is None:
            known = ", ".join((*_PROMPT_KEYS, "instruction", *_IDS_KEYS, *_CONVERSATION_KEYS))
            found = ", ".join(entry.values) or "nothing"
            raise entry.error(f"has no prompt: expected one of {known}; found {found}")
        prompt = text
    if not prompt.strip():
        return None
    if tokens is None and answer is not None:
        tokens = max(1, int(len(answer.split()) * _TOKENS_PER_WORD))
    # JSON can contain half of a surrogate pair ("\ud800"), which no server accepts.
    valid = prompt.encode("utf-8", errors="replace").decode("utf-8")
    return replace(request, prompt=valid, max_tokens=tokens or limit)


def turns_of(entry: DatasetEntry) -> list[DatasetEntry]:
    """Return an entry for each of the user's turns in a conversation; other entries stay as they are."""
    if entry.conversation is None:
        return [entry]
    common = {key: entry.values[key] for key in OUTPUT_LENGTH_KEYS if key in entry.values}
    first: dict[str, Any] = {key: entry.values.get(key) for key in ("due_s", "timestamp")}
    turns: list[dict[str, Any]] = []
    for role, text, turn in _messages(entry):
        if role == "system":
            first["said"] = [{"role": role, "content": text}]
        elif role != "assistant" and text.strip():
            turns.append({**common, **turn, "prompt": text})
        elif turns:
            turns[-1]["answer"] = text
    return [entry._replace(values={**(first if turn is turns[0] else {}), **turn}) for turn in turns]


def _messages(entry: DatasetEntry) -> Iterator[tuple[str, str, dict[str, Any]]]:
    key = entry.conversation or ""
    turns = entry.values[key]
    if key == "turns" and isinstance(turns, list):
        turns = [{"text": turn} if isinstance(turn, str) else turn for turn in turns]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise entry.error(f"{key} must be a list of turns, each a JSON object")
    for turn in turns:
        content = turn.get("value", turn.get("content", turn.get("text")))
        if isinstance(content, list):
            texts = [part.get("text") for part in content if isinstance(part, dict)]
            content = "\n".join(text for text in texts if isinstance(text, str))
        if content is None and "tool_calls" in turn:
            content = ""
        if not isinstance(content, str):
            raise entry.error("a turn must have text in value, content or text")
        role = str(turn.get("from", turn.get("role", ""))).lower()
        yield _ROLES.get(role, role), content, turn


# Count their tokens, and leave out long ones --------------------------------------------------------


def counted(
    spec: WorkloadSpec, prompts: Iterator[WorkloadRequest]
) -> tuple[list[WorkloadRequest], list[str]]:
    """Return the first ``spec.count`` prompts within the limit, and notes for readers of the results.

    For a model that accepts token IDs, prompts become IDs. ``prompts`` may repeat prompts, but must end if
    all are too long. Raises ConfigError if all are too long, or if a necessary tokenizer is missing.
    """
    known: dict[WorkloadRequest, WorkloadRequest | None] = {}
    kept: list[WorkloadRequest] = []
    while batch := list(islice(prompts, spec.count - len(kept))):
        new = [request for request in dict.fromkeys(batch) if request not in known]
        known.update(zip(new, _encoded(spec, new), strict=True))
        kept += [found for request in batch if (found := known[request]) is not None]
        if not kept and not new:
            break
    if not kept:
        raise spec.all_too_long()
    left_out = sum(found is None for found in known.values())
    return kept, [too_long_note(left_out, len(known), "prompts", spec.limit)] if left_out else []


def _encoded(spec: WorkloadSpec, requests: Sequence[WorkloadRequest]) -> Iterator[WorkloadRequest | None]:
    """Yield each request with its length, or ``None`` if it is too long."""
    texts = [request.prompt for request in requests if request.prompt is not None]
    encoded: Iterator[list[int]] = iter(())
    if spec.tokenizer is not None:
        encoded = iter(spec.tokenizer.encode(texts))
    elif texts and (spec.takes_token_ids or spec.settings.workload.max_input_tokens is not None):
        key, what = ("tokenizer", "a model that accepts token IDs only")
        if not spec.takes_token_ids:
            key, what = "max_input_tokens", "a limit of prompt lengths"
        message = f"{what} needs a tokenizer, but none was found"
        raise settings_error(key, message, code="no-tokenizer", hint=TOKENIZER_HINT)
    for request in requests:
        ids = request.token_ids if request.prompt is None else next(encoded, None)
        if ids is None:
            yield request
        elif spec.limit is not None and len(ids) > spec.limit:
            yield None
        elif spec.takes_token_ids or request.prompt is None:
            by_ids = replace(request, prompt=None, token_ids=tuple(ids))
            yield replace(by_ids, input_tokens=len(ids), input_by=BY_WORKLOAD)
        else:
            yield replace(request, input_tokens=len(ids), input_by=BY_TOKENIZER)


def too_long_note(left_out: int, seen: int, what: str, limit: int | None) -> str:
    """Return the sentence about prompts or requests beyond the limit."""
    return f"Left out {left_out:,} of {seen:,} {what}: longer than {limit} tokens."
