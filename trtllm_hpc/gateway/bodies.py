"""Parse and check the bodies of requests. Keys beyond OpenAI's are those of ``trtllm-serve`` and vLLM."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from trtllm_hpc.client.request import MAX_TOKENS
from trtllm_hpc.gateway.answers import ApiError

MOST_CHOICES = 128
"""Largest number of answers to a request, for all its prompts together."""

_IGNORED = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("prompt_cache_retention", "parallel_tool_calls"),
    }
)
"""Keys that are ignored because they could not change an answer here."""
_NEUTRAL: tuple[Any, ...] = ("", [], {}, "none", "auto", {"type": "text"}, ["text"])
"""Values with which an unsupported key is accepted because it asks for nothing, beside ``null`` and
``false``."""
_TOOLS = {"tools": "tool_choice", "functions": "function_call"}
"""Key of each list of tools, and the key that forbids their use with the value ``none``."""

Penalty = Annotated[float, Field(ge=-2, le=2)]
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
NotNegative = Annotated[int, Field(ge=0, le=2**31 - 1)]


class StreamOptions(BaseModel):
    """Options of a stream. Other keys are ignored."""

    include_usage: bool = False
    """Whether the last chunk has the tokens of the whole request."""


class AnyBody(BaseModel):
    """The keys of both kinds of requests. ``None`` means the model's default."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: str
    max_tokens: Positive | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] = 1
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    stream: bool = False
    stream_options: StreamOptions = Field(default_factory=StreamOptions)

    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] = 0
    """Number of likeliest tokens to choose from; 0 and -1: all tokens."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    min_tokens: NotNegative | None = None
    ignore_eos: bool = False

    @field_validator("stop", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class CompletionBody(AnyBody):
    """The body of ``/v1/completions``."""

    prompt: list[str] | list[list[NotNegative]]
    max_tokens: Positive | None = MAX_TOKENS

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompts(cls, value: Any, info: ValidationInfo) -> Any:
        """Turn a single prompt into a list; raise ValueError with one sentence for any other type."""
        if isinstance(value, str) or (_is_list(value, int) and value):
            value = [value]
        are_ids = isinstance(value, list) and all(_is_list(prompt, int) and prompt for prompt in value)
        if not value or not (_is_list(value, str) or are_ids):
            raise ValueError(
                "it must be a text, a list of texts, a list of token IDs, or a list of such lists"
            )
        answers = info.data.get("n", 1)
        if len(value) * answers > MOST_CHOICES:
            raise ValueError(f"{len(value)} prompts with n {answers} are more than {MOST_CHOICES} answers")
        return value


class ChatBody(AnyBody):
    """The body of ``/v1/chat/completions``."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    """Messages in the form that chat templates expect."""
    max_completion_tokens: Positive | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @field_validator("messages")
    @classmethod
    def _for_template(cls, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [_message(message) for message in messages]


def _message(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its parts joined, and with JSON arguments of calls parsed."""
    if not isinstance(raw.get("role"), str):
        raise ValueError("a message has no role")
    message = {name: value for name, value in raw.items() if value is not None}
    content = message.setdefault("content", None)
    if isinstance(content, list):
        parts = [part if isinstance(part, dict) else {} for part in content]
        wrong = [part.get("type") for part in parts if not isinstance(part.get("text"), str)]
        if wrong:
            raise ValueError(f"parts of the type {wrong[0]!r} are not supported, only text")
        message["content"] = "\n".join(part["text"] for part in parts)  # as trtllm-serve and vLLM do
    elif not isinstance(content, str) and not (content is None and message.get("tool_calls")):
        raise ValueError("content must be a text: only a message with tool_calls may be without it")
    for call in message.get("tool_calls", ()):
        with suppress(ValueError, KeyError, TypeError):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return message


Body = TypeVar("Body", bound=AnyBody)


def parse(kind: type[Body], body: bytes) -> Body:
    """Return a request. Raises ApiError with the name of the wrong key."""
    try:
        record = json.loads(body.decode())
        json.dumps(record, ensure_ascii=False).encode()  # fails for unpaired surrogates
    except (ValueError, RecursionError) as error:
        raise ApiError(f"The body is not JSON in UTF-8: {error}.") from None
    if not isinstance(record, dict):
        raise ApiError("The body must be a JSON object.")
    for tools, choice in _TOOLS.items():
        if record.get(choice) == "none":
            record.pop(tools, None)
    keys = {name: value for name, value in record.items() if value is not None and name not in _IGNORED}
    for name in [key for key in keys if key not in kind.model_fields]:
        value = keys.pop(name)
        if value is not False and value not in _NEUTRAL:
            message = f"{name} is not supported by this server."
            raise ApiError(message, param=name, code="unsupported_parameter")
    try:
        return kind.model_validate(keys)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        # Skip the names of a union's members, which contain brackets and are not keys.
        place = ".".join(str(part) for part in first["loc"] if "[" not in str(part))
        what = first["msg"].removeprefix("Value error, ")
        message = f"{place}: {what[:1].lower()}{what[1:]}."
        raise ApiError(message, param=str(first["loc"][0])) from None


def _is_list(value: Any, kind: type) -> bool:
    """Return whether a value is a list with items of one type only; ``true`` does not count as a number."""
    return isinstance(value, list) and all(
        isinstance(item, kind) and not isinstance(item, bool) for item in value
    )
