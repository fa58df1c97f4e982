"""``companion.benchmark`` and ``companion.evaluate`` of a job file.

``trtllm-hpc bench`` and ``evaluate`` have an option for each key; the job file's values are their defaults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_serializer

from trtllm_hpc.config.types import AbsolutePath, AnyText, Count, OneLine, Section, Time, TokenCount

Rate = Annotated[float, Field(gt=0, le=100_000)]
Protocol = Literal["grpc", "http", "openai", "openai-chat"]
"""``grpc`` and ``http`` are Triton's, ``openai`` is ``/v1/completions``, ``openai-chat``
``/v1/chat/completions``."""
OPENAI_PROTOCOLS = ("openai", "openai-chat")
Deviation = Annotated[float, Field(ge=0, le=1_000_000)]
_SECRET = re.compile("auth|cookie|credential|key|password|secret|token", re.IGNORECASE)
"""Found in names of headers whose values must not be written into results."""


SEARCH_WINDOW_S = 5.0
"""Shortest measured window of a search, in seconds.

A number of requests cannot replace the window: at the search's highest rates they would all be sent at once.
"""

_OPEN, _CLOSED = "rates_per_second", "concurrency concurrencies"
_LOOP = "a rate is for an open loop, a concurrency for a closed loop"
_SEARCH = "the search chooses the rates itself, starting at rate_per_second"
_SEARCH_RATE = "a trace has its own times, and the search chooses the rate"
_ONE = "leave one out"
_ENDS = "ends after a number of requests or of seconds, not both"
EXCLUSIVE = tuple(
    (first, second, why, remedy)
    for firsts, seconds, why, remedy in (
        ("concurrencies", "concurrency", "concurrency has no effect beside concurrencies", _ONE),
        (_OPEN, _CLOSED, _LOOP, "remove it, or the concurrency"),
        (_OPEN, "arrival=trace", "a trace has its own times", "remove it, or set arrival to poisson"),
        ("duration_seconds", "requests", f"the window {_ENDS}", _ONE),
        ("warmup_seconds", "warmup_requests", f"the warm-up {_ENDS}", _ONE),
        (f"{_OPEN} {_CLOSED}", "find_max", _SEARCH, "remove it, or set find_max to false"),
        ("arrival=trace", "find_max", _SEARCH_RATE, "set arrival to poisson"),
    )
    for first in firsts.split()
    for second in seconds.split()
)
"""Pairs of keys that exclude each other, with the reason and the remedy; an error names the first key.

``key=value`` means the key with this value only.
"""


def is_set(settings: Mapping[str, Any], key: str) -> bool:
    """Return whether ``settings`` set a key of :data:`EXCLUSIVE`; 0 counts as set."""
    field, _, wanted = key.partition("=")
    value = settings.get(field)
    return value == wanted if wanted else value is not None and value is not False and value != []


def excluded(settings: Mapping[str, Any]) -> set[str]:
    """Return the keys of :data:`EXCLUSIVE` that conflict with ``settings``."""
    pairs = [pair for first, second, *_ in EXCLUSIVE for pair in ((first, second), (second, first))]
    return {other for key, other in pairs if is_set(settings, key)}


class LoraAdapter(Section):
    """A LoRA adapter in the format of ``hf_lora_convert.py``."""

    directory: AbsolutePath | None = None
    """Folder with ``model.lora_weights.npy`` and ``model.lora_config.npy``."""
    adapter: OneLine | None = None
    """Instead of ``directory``: folder name of an entry of ``engine.lora.adapters``."""
    task_id: Annotated[int, Field(ge=0, le=2**64 - 1)] | None = None
    """Task ID of the adapter on the server, unique; ``None``: 1, or the position in a list."""

    def number(self, place: int) -> int:
        """Return the task ID; ``place`` is the default."""
        return place if self.task_id is None else self.task_id


class Workload(Section):
    """Prompts and answer lengths. A meaning begins with the kinds that read the key."""

    kind: Literal["prompts", "dataset", "normal", "shared-prefix", "trace", "conversations"] = "prompts"
    """``prompts``: a list. ``dataset``: a file of prompts. ``normal``: normally distributed lengths.
    ``shared-prefix``: prompts with a common prefix. ``trace``: a recorded file with timestamps.
    ``conversations``: turns with think time, generated or from a file, each sent with all earlier turns;
    rate, concurrency and numbers of requests then count conversations."""
    prompts: list[AnyText] = Field(default=[])
    """prompts: the list; empty: built-in prompts."""
    path: AbsolutePath | None = None
    """dataset, trace, conversations: the file."""
    input_tokens: TokenCount = 128
    """normal: mean prompt length. shared-prefix: mean length after the prefix. conversations: mean length of
    the user's part of a turn."""
    input_tokens_stdev: Deviation = 0.0
    """Standard deviation of ``input_tokens``."""
    output_tokens: TokenCount | None = None
    """normal, shared-prefix, conversations: mean answer length; ``None``: ``max_tokens``."""
    output_tokens_stdev: Deviation = 0.0
    """Standard deviation of ``output_tokens``."""
    prefix_tokens: TokenCount = 256
    """shared-prefix: length of each prefix. conversations: length of each system prompt."""
    prefixes: Count = 1
    """shared-prefix: number of prefixes, used in rotation. conversations: number of system prompts."""
    turns: Count = 6
    """conversations: mean number of turns."""
    turns_stdev: Deviation = 0.0
    """Standard deviation of ``turns``."""
    think_seconds: Annotated[Deviation, Time(1)] = 1.0
    """conversations: mean time from an answer's end to the next turn, unless the file has it."""
    think_seconds_stdev: Annotated[Deviation, Time(1)] = 0.0
    """Standard deviation of ``think_seconds``."""
    speed: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """trace, conversations: factor that divides the recorded times."""
    max_input_tokens: TokenCount | None = None
    """Longest prompt: longer ones in a file are left out (TensorRT-LLM's ``--max-input-len``), generated ones
    shortened; ``None``: the engine's limit."""
    tokenizer: AbsolutePath | None = None
    """Folder with ``tokenizer.json``; ``None``: the model's folder."""


class Benchmark(Section):
    """A measurement: workload, levels of load, and conditions of valid figures."""

    @classmethod
    def with_defaults(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """Add the defaults that depend on other keys.

        Seconds replace a number of requests, a trace has its own times, a search repeats each rate three
        times, and conversations use the chat protocol.
        """
        for seconds, requests in (("duration_seconds", "requests"), ("warmup_seconds", "warmup_requests")):
            if plain.get(seconds) is not None and requests not in plain:
                plain = {**plain, requests: None}
        if plain.get("find_max") and "repeats" not in plain:
            plain = {**plain, "repeats": 3}
        workload = plain.get("workload")
        kind = workload.get("kind") if isinstance(workload, dict) else getattr(workload, "kind", None)
        if kind == "trace" or plain.get("arrival") == "trace":
            plain = {"arrival": "trace", "requests": None, "warmup_requests": 0, **plain}
        if kind == "conversations" and plain.get("protocol") is None:
            plain = {**plain, "protocol": "openai-chat"}
        return plain

    workload: Workload = Field(default_factory=Workload)
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of prompts, lengths and arrivals; arrivals differ between repeats."""
    max_tokens: TokenCount = 16
    """Most output tokens of a request, if the workload has no length for it."""
    exact_output: bool = False
    """Request answers of exactly the wanted length (``min_length``; OpenAI: ``min_tokens``,
    ``ignore_eos``)."""

    # The target --------------------------------------------------------------------------------
    model: OneLine | None = None
    """Model on the server, e.g. ``ensemble`` or ``tensorrt_llm``; ``None``: the run's text model."""
    protocol: Protocol | None = None
    """``grpc``, ``http``: Triton. ``openai``: ``/v1/completions``. ``openai-chat``:
    ``/v1/chat/completions``. ``None``: ``openai-chat`` for conversations, else ``grpc`` for Triton and
    ``openai`` for other servers."""
    streaming: bool | None = None
    """Stream answers; ``None``: over OpenAI's protocol, and if Triton's model is decoupled."""
    request_timeout_seconds: Annotated[float, Field(gt=0, le=31_536_000), Time(1)] = 60.0
    """Longest time of a request; later it has failed."""
    max_tokens_key: Literal["max_tokens", "max_completion_tokens"] | None = None
    """OpenAI: body key for the most output tokens; ``None``: ``max_tokens``, unless the server refuses it."""
    include_usage: bool | None = None
    """OpenAI: ask for token counts in streams (``stream_options``); ``None``: unless the server refuses
    it."""
    extra_body: dict[str, Any] = Field(default={})
    """OpenAI: further body keys of each request, e.g. ``temperature`` or ``chat_template_kwargs``."""
    headers: dict[str, OneLine] = Field(default={})
    """Further headers of each request. Results leave out values of secret headers such as ``api-key``."""

    @field_serializer("headers", when_used="json")
    def _without_secrets(self, headers: dict[str, str]) -> dict[str, str]:
        return {name: "(secret)" if _SECRET.search(name) else value for name, value in headers.items()}

    # The load ----------------------------------------------------------------------------------
    rate_per_second: Rate = 4.0
    """Open loop: send requests at this rate, whether or not earlier ones are answered."""
    rates_per_second: list[Rate] = Field(default=[])
    """Measure these rates one after another, instead of ``rate_per_second``."""
    concurrency: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Closed loop: keep this number of requests in flight, instead of a rate."""
    concurrencies: list[Annotated[int, Field(ge=1, le=100_000)]] = Field(default=[])
    """Measure these concurrencies one after another."""
    arrival: Literal["constant", "poisson", "gamma", "trace"] = "poisson"
    """Gaps between requests: equal (``constant``), random, or those of a trace."""
    burstiness: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Shape of ``gamma`` arrivals: 1 is Poisson, below 1 bursty, far above 1 nearly constant."""
    requests: Count | None = 20
    """Measured requests per level; ``None`` needs ``duration_seconds``."""
    duration_seconds: Annotated[float, Field(gt=0, le=31_536_000), Time(1)] | None = None
    """Measured window per level, instead of ``requests``."""
    warmup_requests: Annotated[int, Field(ge=0, le=1_000_000)] | None = 2
    """Requests before the window, recorded but left out of the figures."""
    warmup_seconds: Annotated[float, Field(ge=0, le=86_400), Time(1)] | None = None
    """Length of the warm-up, instead of ``warmup_requests``."""
    repeats: Annotated[int, Field(ge=1, le=1000)] = 1
    """Passes per level; two or more give confidence intervals. Default with ``find_max``: 3."""

    processes: Annotated[int, Field(ge=1, le=256)] = 1
    """Client processes that share the load; each uses at most one core."""

    # Validity ----------------------------------------------------------------------------------
    slo: OneLine | None = None
    """Latency limits for goodput and ``find_max``, e.g. ``ttft.p99<500ms,tpot.p99<50ms``."""
    find_max: bool = False
    """Search for the highest rate that meets ``slo``, starting at ``rate_per_second``."""
    max_error_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Largest valid share of failed requests."""
    max_failures_in_a_row: Annotated[int, Field(ge=0, le=1_000_000)] = 50
    """End the measurement after this many consecutive failures; 0: never. Requests sent before the first
    failure do not count."""
    max_late_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Largest valid share of requests that the client sends late (by over 1 ms and 2 % of the median TTFT).
    Up to 0.1 stays valid while the delay is at most 5 % of all median and p99 latencies. 1: no check of the
    client's delays and late timestamps."""
    min_requests: Count = 10
    """Fewest measured requests of valid figures."""
    min_window_seconds: Annotated[float, Field(ge=0, le=86_400), Time(1)] = 1.0
    """Shortest measured window of valid figures."""

    @property
    def replays(self) -> bool:
        """Whether every pass replays a file's requests, with their times, from the beginning."""
        return self.workload.kind == "trace" or self.arrival == "trace"

    @property
    def closed_loop(self) -> bool:
        """Whether an answer triggers the next request, instead of a clock."""
        return self.concurrency is not None or bool(self.concurrencies)


Score = Annotated[float, Field(ge=0, le=1)]


class Evaluation(Section):
    """``lm-eval`` tasks over OpenAI's protocol, and the score that a run must reach.

    Keys that are ``None`` have the toolkit's value for the task, else the task's own.
    """

    tasks: Annotated[list[OneLine], Field(min_length=1)]
    """Tasks or groups of ``lm-eval`` whose answers are generated, or the shipped task ``facts``."""
    limit: Count | None = None
    """Ask only the first questions of each task, this many."""
    few_shot: Annotated[int, Field(ge=0, le=100)] | None = None
    """Solved examples before each question."""
    threshold: Score | None = None
    """Lowest score of each task that passes, 0 to 1."""
    not_worse_than: OneLine | None = None
    """ID or folder of an evaluated run. A task fails if this run answers the common questions worse, by a
    paired one-sided test."""
    protocol: Literal["completions", "chat"] | None = None
    """``chat``: ``/v1/chat/completions``, with the chat template. ``completions``: plain text."""
    metric: OneLine | None = None
    """Metric of ``lm-eval``, e.g. ``exact_match,flexible-extract``; ``None``: the task's first."""
    max_tokens: TokenCount | None = None
    """Most tokens of an answer."""
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    """Sampling temperature, for models that should not be used at 0."""
    data: AbsolutePath | None = None
    """Folder of the data sets from ``evaluate --prepare``; ``None``: ``~/.cache/trtllm-hpc/evaluation``."""
