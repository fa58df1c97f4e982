"""The bodies of requests, checked. Keys beyond OpenAI's are those of ``trtllm-serve``, which vLLM shares."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from trtllm_hpc.client.request import MAX_TOKENS
from trtllm_hpc.gateway.answers import ApiError

MOST_CHOICES = 128
"""Most answers to one request: those to each of its prompts, together."""

_IGNORED = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("prompt_cache_retention", "parallel_tool_calls"),
    }
)
"""Keys that ask for nothing that an answer could show here."""

_NEUTRAL: Mapping[str, Sequence[Any]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "logit_bias": ({},),
    "echo": (False,),
    "best_of": (1,),
    "beam_width": (1,),
}
"""Keys that the gateway does not have, each with the values that ask for nothing."""

_TOOLS = {"tools": "tool_choice", "functions": "function_call"}
"""Lists of tools, each with the key that forbids their use with the value ``none``."""

Penalty = Annotated[float, Field(ge=-2, le=2)]
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
NotNegative = Annotated[int, Field(ge=0, le=2**31 - 1)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class StreamOptions(_Body):
    """What a stream has besides text."""

    include_usage: bool = False
    """Whether the last chunk has the tokens of the whole request."""
    continuous_usage_stats: bool = False
    """With ``include_usage``: whether each chunk has the tokens of its answer so far."""


class GenerationRequest(_Body):
    """What both kinds of requests have. A key with ``None`` has the model's default."""

    model: str
    max_tokens: Positive | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] = 1
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: list[str] = Field(default_factory=list)
    stream: bool = False
    stream_options: StreamOptions | None = None
    logprobs: int | bool | None = None
    """The served models report the probability of each chosen token only."""

    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] = 0
    """0 and -1 are all tokens."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    min_tokens: NotNegative | None = None
    ignore_eos: bool = False
    stop_token_ids: list[NotNegative] = Field(default_factory=list)
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    """To the prompt; ``None``: as the served model's configuration says, and never to a chat."""

    @property
    def wants_log_probs(self) -> bool:
        """Whether the answer has the logarithm of each token's probability."""
        return self.logprobs is not None and self.logprobs is not False

    @field_validator("stop", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        stops = [value] if isinstance(value, str) else value
        if isinstance(stops, list) and "" in stops:
            raise ValueError("a text to stop at is empty")
        return stops

    @field_validator("stream_options")
    @classmethod
    def _goes_with_a_stream(cls, value: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if value is not None and not info.data.get("stream"):
            raise ValueError("it goes with stream: true")
        return value


class CompletionRequest(GenerationRequest):
    """The body of ``/v1/completions``."""

    prompt: list[str] | list[list[NotNegative]]
    max_tokens: Positive | None = MAX_TOKENS
    logprobs: Literal[0, 1] | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompts(cls, value: Any, info: ValidationInfo) -> Any:
        """Take one prompt for a list of one; say in one sentence what else it must be."""
        if isinstance(value, str) or (_is_list(value, int) and value):
            value = [value]
        are_ids = isinstance(value, list) and all(_is_list(each, int) and each for each in value)
        if not value or not (_is_list(value, str) or are_ids):
            raise ValueError(
                "it must be a text, a list of texts, a list of token ids, or a list of such lists"
            )
        answers = info.data.get("n", 1)
        if len(value) * answers > MOST_CHOICES:
            raise ValueError(f"{len(value)} prompts with n {answers} are more than {MOST_CHOICES} answers")
        return value


class Message(_Body):
    """One message of a chat."""

    role: str
    content: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    """With the role ``tool``: the call that this message answers."""
    annotations: list[Any] | None = Field(default=None, max_length=0)
    refusal: None = None
    audio: None = None
    function_call: None = None

    @field_validator("content", mode="before")
    @classmethod
    def _joined(cls, value: Any) -> Any:
        """Join parts with line ends, as ``trtllm-serve`` and vLLM do."""
        if not isinstance(value, list):
            return value
        for part in value:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text":
                raise ValueError(f"parts of the type {kind!r} are not supported, only text")
            if not isinstance(part.get("text"), str):
                raise ValueError("a part of the type 'text' has no text")
        return "\n".join(part["text"] for part in value)

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and not self.tool_calls:
            raise ValueError("content is missing: only a message with tool_calls may be without it")
        return self

    def for_template(self) -> dict[str, Any]:
        """Return the message as templates expect it: a call's arguments are an object where they are JSON."""
        plain = self.model_dump(exclude_none=True, exclude={"annotations"}) | {"content": self.content}
        for call in plain.get("tool_calls", ()):
            with suppress(ValueError, KeyError, TypeError):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        return plain


class ChatRequest(GenerationRequest):
    """The body of ``/v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Positive | None = None
    logprobs: bool = False
    top_logprobs: Literal[0] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)


Kind = TypeVar("Kind", bound=GenerationRequest)


def parse(kind: type[Kind], body: bytes) -> Kind:
    """Return a request. Raises ApiError naming the key that is wrong."""
    given = _json(body)
    if not isinstance(given, dict):
        raise ApiError("The body must be a JSON object.")
    for tools, choice in _TOOLS.items():
        if given.get(choice) == "none":
            given.pop(tools, None)
    keys = {name: value for name, value in given.items() if value is not None and name not in _IGNORED}
    for name in [each for each in keys if each not in kind.model_fields]:
        if keys.pop(name) not in _NEUTRAL.get(name, ()):
            raise _unknown(name, kind)
    try:
        return kind.model_validate(keys)
    except ValidationError as error:
        raise _wrong(error) from None


def _json(body: bytes) -> Any:
    try:
        text = body.decode()
        given = json.loads(text)
        if "\\ud" in text.lower():
            json.dumps(given, ensure_ascii=False).encode()
        return given
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):x}"
        raise ApiError(f"A text has {half}, half of a surrogate pair, which is not a character.") from None
    except (ValueError, RecursionError) as error:
        raise ApiError(f"The body is not JSON: {error}.") from None


def _unknown(name: str, kind: type[GenerationRequest]) -> ApiError:
    near = get_close_matches(name, kind.model_fields, n=1)
    if name not in _NEUTRAL and near:
        return ApiError(f"{name} is not known here. Did you mean {near[0]}?", param=name)
    return ApiError(f"{name} is not supported by this server.", param=name, code="unsupported_parameter")


def _wrong(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False)[0]
    # A union's members have names of their own, which are not keys.
    place = ".".join(str(part) for part in first["loc"] if "[" not in str(part))
    what = first["msg"].removeprefix("Value error, ")
    return ApiError(f"{place}: {what[:1].lower()}{what[1:]}.", param=str(first["loc"][0]))


def _is_list(value: Any, kind: type) -> bool:
    """Whether a value is a list of this kind alone; ``true`` is not a number."""
    return isinstance(value, list) and all(
        isinstance(item, kind) and not isinstance(item, bool) for item in value
    )
