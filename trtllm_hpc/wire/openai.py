"""OpenAI's completions and chats: encode requests, and parse bodies and events.

Keys beyond OpenAI's are those of ``trtllm-serve`` (``tensorrt_llm/serve/openai_protocol.py``), which vLLM
shares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import UNSET, DecodeError, Struct, UnsetType, ValidationError, convert
from msgspec.json import Decoder

from trtllm_hpc.wire.events import Event, EventReader, last_events
from trtllm_hpc.wire.response import Part, Response, Usage, WrongResponse, error_message

COMPLETIONS_PATH, CHAT_PATH = "completions", "chat/completions"
"""Paths below the server's URL."""

DONE = b"[DONE]"
"""Data of the event that ends a stream."""
INCOMPLETE = "the stream is incomplete: it has neither [DONE] nor a finish_reason"

_END = re.compile(rb"data:\s*\[DONE\]\s*\Z")
_FINISHED = re.compile(rb'"finish_reason":\s*"')
"""End of a stream of servers without ``[DONE]``, such as ``transformers serve``."""
_ERROR = re.compile(rb'"error"|^event:\s*error', re.MULTILINE)
"""Matches no text of an answer, in which JSON escapes quotation marks and line breaks."""


def encode_request(
    model: str,
    prompt: str | Sequence[int],
    *,
    messages: Sequence[Mapping[str, Any]] = (),
    stream: bool = False,
    include_usage: bool = True,
    options: Mapping[str, Any],
) -> bytes:
    """Return the body of a request.

    Args:
        prompt: a text or token IDs; ignored in a chat.
        messages: messages of a chat.
        options: further keys of the body.
    """
    body: dict[str, Any] = {"model": model}
    if messages:
        body["messages"] = [dict(message) for message in messages]
    else:
        body["prompt"] = prompt
    body |= {**options, "stream": stream}
    if stream and include_usage:
        body["stream_options"] = {"include_usage": True}
    return json.dumps(body, ensure_ascii=False).encode("utf-8", errors="replace")


class _Message(Struct):
    """A chat's message, or the part of it in an event."""

    content: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None


class _Choice(Struct):
    index: int = 0
    text: str | UnsetType | None = UNSET
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: Any = None
    logprobs: Any = None


class _Body(Struct):
    """The used keys of a response; msgspec checks their types and skips other keys."""

    choices: list[_Choice] | UnsetType | None = UNSET
    usage: Any = UNSET


_decode = Decoder(_Body).decode


def parse_response(data: bytes) -> Response:
    """Parse a body or the data of an event. Raises WrongResponse."""
    try:
        body = _decode(data)
    except (DecodeError, ValueError):  # ValueError if it is not UTF-8
        try:  # Python's parser also accepts values beyond the standard, such as NaN
            body = convert(json.loads(data), _Body)
        except ValidationError as error:
            message = f"what does not follow OpenAI's protocol ({error}): {data[:200]!r}"
            raise WrongResponse(message) from None
        except ValueError:
            raise WrongResponse(f"what cannot be read as JSON: {data[:200]!r}") from None
    choices, usage = body.choices, body.usage
    if choices is UNSET and usage is UNSET:
        raise WrongResponse(f"what cannot be read as a response of OpenAI's protocol: {data[:200]!r}")
    if not choices:
        return Response((), _usage(usage))
    is_last = False
    for choice in choices:
        if choice.finish_reason:
            is_last = True
    return Response([_part(choice) for choice in choices], _usage(usage) if usage else None, is_last)


def _part(choice: _Choice) -> Part:
    """Return the text of a choice of completions or chats, streamed or not."""
    text, thought = choice.text, None
    if text is UNSET:
        message = choice.delta or choice.message
        text = None if message is None else message.content
        thought = message and (message.reasoning_content or message.reasoning)
    log_probs: tuple[float, ...] = ()
    if isinstance(choice.logprobs, dict):
        of_chat = (token.get("logprob") for token in choice.logprobs.get("content") or ())
        values = choice.logprobs.get("token_logprobs") or of_chat
        log_probs = tuple(value for value in values if isinstance(value, (int, float)))
    return Part(
        text or "",
        thought=thought if isinstance(thought, str) else "",
        log_probs=log_probs,
        place=(choice.index, 0) if choice.index else _FIRST,
    )


_FIRST = (0, 0)


def answer_text(events: Iterable[bytes]) -> str:
    """Return the text of a chat's stream without reasoning; a single parser call makes it quick."""
    bodies = json.loads(b"[%b]" % b",".join(event for event in events if event != DONE))
    choices = [choice for plain in bodies for choice in plain.get("choices") or () if not choice["index"]]
    return "".join((choice.get("delta") or {}).get("content") or "" for choice in choices)


def _usage(plain: Any) -> Usage | None:
    if not isinstance(plain, dict):
        return None
    details = [plain.get(f"{of}_tokens_details") or {} for of in ("prompt", "completion")]
    counts = [plain.get(f"{of}_tokens") for of in ("prompt", "completion")]
    keys = ("cached_tokens", "reasoning_tokens")
    counts += [detail.get(key) for detail, key in zip(details, keys, strict=True)]
    return Usage(*(count if isinstance(count, int) else None for count in counts))


def event_error(event: Event) -> str | None:
    """Return the server's message if an event of a stream is an error."""
    if event.kind != b"error":
        try:
            plain = json.loads(event.data)
        except ValueError:
            return None
        if not (isinstance(plain, dict) and (plain.get("error") or plain.get("object") == "error")):
            return None
    return error_message(event.data) or "an error without a message"


def stream_error(stream: bytes) -> str | None:
    """Return the error at the end of a whole stream, or that the stream is incomplete; else ``None``."""
    stream = last_events(stream)
    if _ERROR.search(stream):
        reader = EventReader()
        for event in [*reader.add(stream), *reader.end()]:
            if (error := event_error(event)) is not None:
                return error
    return None if _END.search(stream[-64:]) or _FINISHED.search(stream) else INCOMPLETE
