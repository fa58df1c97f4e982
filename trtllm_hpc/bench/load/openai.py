"""Requests and answers of OpenAI's completions and chat as bytes: bodies before the load, events after it.

While the load runs, a stream is kept as the pieces in which the network brought it. They are put together
and read here, after the pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.client.http import error_message

COMPLETIONS, CHAT = "openai", "openai-chat"
"""The protocols, by their names in the settings."""
PATHS = {COMPLETIONS: "completions", CHAT: "chat/completions"}
"""Where each is asked, below the server's URL."""

_DONE = b"[DONE]"
_END = re.compile(rb"data:\s*\[DONE\]\s*\Z")
_FINISHED = re.compile(rb'"finish_reason":\s*"')
"""For servers that end a stream without ``[DONE]``, as ``transformers serve`` does."""
_ERROR = re.compile(rb'"error"|^event:\s*error', re.MULTILINE)
"""Not a part of a text: JSON has a backslash before a quotation mark in one, and no line breaks."""
INCOMPLETE = "the stream ended before its end: it has neither [DONE] nor a reason why the answer ended"


class Event(NamedTuple):
    """One server-sent event."""

    time_s: float
    """When the last of it arrived."""
    data: bytes
    kind: bytes = b""
    """Its ``event:`` line; mostly it has none."""


@dataclass(frozen=True)
class Usage:
    """The server's count of tokens; ``None``: it did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True)
class Part:
    """One response, or event of a stream."""

    text: str | None
    """Of the first choice; empty in an event that begins or ends an answer. ``None``: it has no choice."""
    usage: Usage | None


def encode(request: Request, protocol: str, model: str, *, streaming: bool, exact: bool) -> bytes:
    """Return the body of a request; ``exact``: the answer must have the requested length.

    ``ignore_eos`` and ``min_tokens`` are keys of ``trtllm-serve`` and vLLM, not of OpenAI. Raises ValueError
    for token ids of a chat, or a LoRA adapter.
    """
    if request.lora_task_id is not None:
        raise ValueError("OpenAI's protocol has no field for the weights of LoRA adapters")
    body: dict[str, Any] = {"model": model}
    if protocol == CHAT:
        if request.prompt is None:
            raise ValueError("a chat takes texts, not token ids")
        body["messages"] = [{"role": "user", "content": request.prompt}]
    else:
        body["prompt"] = list(request.token_ids or ()) if request.prompt is None else request.prompt
    body |= {"max_tokens": request.max_tokens, "stream": streaming}
    if streaming:
        body["stream_options"] = {"include_usage": True}
    if exact:
        body |= {"min_tokens": request.max_tokens, "ignore_eos": True}
    return json.dumps(body, ensure_ascii=False).encode("utf-8", errors="replace")


def stream_error(body: bytes) -> str | None:
    """Return what is wrong with a whole stream; ``None`` if it is complete and tells of no error."""
    if _ERROR.search(body):
        for event in events([(0.0, body)]):
            if event.kind == b"error" or _is_error(event.data):
                return answer_error(event.data) or "an error without a message"
    if _END.search(body[-64:]) or _FINISHED.search(body):
        return None
    return INCOMPLETE


def answer_error(body: bytes) -> str:
    """Return the server's message; empty if the body has none."""
    return error_message(body[:65536])


def _is_error(data: bytes) -> bool:
    try:
        found = json.loads(data)
    except ValueError:
        return False
    return isinstance(found, dict) and (bool(found.get("error")) or found.get("object") == "error")


def events(pieces: Iterable[tuple[float, bytes]]) -> Iterator[Event]:
    """Yield the events of a stream, each with the time of the piece that completed it.

    As the standard has it (HTML, 9.2.6): lines end with LF or CR LF, an event with an empty line, several
    ``data`` lines are joined, comments and other fields are left out. A last event without its empty line is
    complete if its line is.
    """
    rest, data, kind, time_s = b"", list[bytes](), b"", 0.0
    for time_s, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for raw in lines:
            line = raw.rstrip(b"\r")
            if line.startswith(b"data:"):
                data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif line.startswith(b"event:"):
                kind = line[6:].strip()
            elif not line:
                if data:
                    yield Event(time_s, b"\n".join(data), kind)
                data, kind = [], b""
    last = rest.rstrip(b"\r")
    if last.startswith(b"data:"):
        data.append(last[5:].removeprefix(b" "))
    if data:
        yield Event(time_s, b"\n".join(data), kind)


def parse(data: bytes) -> Part | None:
    """Return what a response, or the data of an event, has; ``None`` for the end and for what is no JSON."""
    if data == _DONE:
        return None
    try:
        found = json.loads(data)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    choices = found.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    return Part(_text(choice) if isinstance(choice, dict) else None, _usage(found.get("usage")))


def _text(choice: dict[str, Any]) -> str:
    """The text of a choice: what a model thinks before it answers is generated as well."""
    if "text" in choice:
        return str(choice["text"] or "")
    message = choice.get("delta") or choice.get("message")
    if not isinstance(message, dict):
        return ""
    thought = message.get("reasoning_content") or message.get("reasoning")
    return "".join(part for part in (thought, message.get("content")) if isinstance(part, str))


def _usage(found: Any) -> Usage | None:
    if not isinstance(found, dict):
        return None
    counts = (found.get(key) for key in ("prompt_tokens", "completion_tokens"))
    return Usage(*(count if isinstance(count, int) else None for count in counts))
