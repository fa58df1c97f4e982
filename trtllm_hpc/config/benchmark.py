"""``companion.benchmark`` of a job file: the requests, their rate, and when the figures are valid.

Beside it ``companion.evaluate``: the tasks whose scores say whether the model still answers well.
``trtllm-hpc bench`` and ``evaluate`` take the same settings as options, and start from those of the job file.
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
"""In the name of a header whose value must not be written into results."""


SEARCH_WINDOW_S = 5.0
"""Shortest window of a search, in seconds. A search raises its rate, so a fixed number of requests that fills
the window at the first rate would be over at once at the last."""

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
``key=value`` means the key with this value only."""


def is_set(settings: Mapping[str, Any], key: str) -> bool:
    """Return whether the settings, by dotted key, have a key of :data:`EXCLUSIVE`; 0 is a value."""
    field, _, wanted = key.partition("=")
    value = settings.get(field)
    return value == wanted if wanted else value is not None and value is not False and value != []


def excluded(settings: Mapping[str, Any]) -> set[str]:
    """Return the keys of :data:`EXCLUSIVE` that cannot stand beside these settings, by dotted key."""
    pairs = [pair for first, second, *_ in EXCLUSIVE for pair in ((first, second), (second, first))]
    return {other for one, other in pairs if is_set(settings, one)}


class LoraAdapter(Section):
    """A LoRA adapter as ``hf_lora_convert.py`` writes it: a folder, or an adapter that the build converts."""

    directory: AbsolutePath | None = None
    """Folder with ``model.lora_weights.npy`` and ``model.lora_config.npy``."""
    adapter: OneLine | None = None
    """Instead of ``directory``: the folder name of an entry of ``engine.lora.adapters``, which the build
    converts."""
    task_id: Annotated[int, Field(ge=0, le=2**64 - 1)] | None = None
    """Number by which the server knows the adapter, its own. ``None``: 1, or the place in a list."""

    def number(self, place: int) -> int:
        """Return the task id; ``place`` if there is none."""
        return place if self.task_id is None else self.task_id


class Workload(Section):
    """Where prompts and lengths of answers come from. Each key names the kinds that read it."""

    kind: Literal["prompts", "dataset", "normal", "shared-prefix", "trace", "conversations"] = "prompts"
    """``prompts``: those given, in a seeded order. ``dataset``: a file of prompts. ``normal``: lengths drawn
    from normal distributions. ``shared-prefix``: prompts with a common beginning, for KV cache reuse.
    ``trace``: a recorded file with time stamps. ``conversations``: turns with think time, drawn or from a
    file; each repeats what was said before. Rate, concurrency, ``requests`` and ``warmup_requests`` then
    count conversations."""
    prompts: list[AnyText] = Field(default=[])
    """prompts: the list; if empty, the built-in prompts."""
    path: AbsolutePath | None = None
    """dataset, trace: the file to read. conversations: a file instead of drawn ones."""
    input_tokens: TokenCount = 128
    """normal: mean length of a prompt. shared-prefix: mean length of the rest after the prefix.
    conversations: mean length of what the user says in a turn."""
    input_tokens_stdev: Deviation = 0.0
    """normal, shared-prefix, conversations: standard deviation of that length."""
    output_tokens: TokenCount | None = None
    """normal, shared-prefix, conversations: mean length of an answer; ``None`` is ``max_tokens``."""
    output_tokens_stdev: Deviation = 0.0
    """normal, shared-prefix, conversations: standard deviation of that length."""
    prefix_tokens: TokenCount = 256
    """shared-prefix: length of each prefix. conversations: length of each system prompt."""
    prefixes: Count = 1
    """shared-prefix: number of different prefixes, which take turns. conversations: of system prompts."""
    turns: Count = 6
    """conversations: mean number of turns."""
    turns_stdev: Deviation = 0.0
    """conversations: standard deviation of that number."""
    think_seconds: Annotated[Deviation, Time(1)] = 1.0
    """conversations: mean time from the end of an answer to the next turn, where a file does not say it."""
    think_seconds_stdev: Annotated[Deviation, Time(1)] = 0.0
    """conversations: standard deviation of that time."""
    speed: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """trace, conversations: factor by which the recorded times are shortened."""
    max_input_tokens: TokenCount | None = None
    """Longer prompts of a dataset or trace are left out (upstream's ``--max-input-len``), and longer drawn
    lengths are cut; ``None``: the engine's limit."""
    tokenizer: AbsolutePath | None = None
    """Folder with ``tokenizer.json``; ``None``: the model's folder."""


class Benchmark(Section):
    """One measurement: a workload, one or more levels of load, and the conditions of valid figures."""

    @classmethod
    def with_defaults(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """Seconds replace a number of requests; a trace has its own times; a search repeats each rate; a
        conversation is a chat."""
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
    """Seed of prompts, lengths and arrivals; each repeat has its own arrivals."""
    max_tokens: TokenCount = 16
    """Maximum of output tokens of a request for which the workload has no length."""
    exact_output: bool = False
    """Whether answers must have exactly the requested length; sent to the model as ``min_length``, over
    OpenAI's protocol as ``min_tokens`` and ``ignore_eos``."""

    # The target --------------------------------------------------------------------------------
    model: OneLine | None = None
    """``ensemble``, ``tensorrt_llm_bls``, ``tensorrt_llm``...; ``None``: the run's text model."""
    protocol: Protocol | None = None
    """``grpc`` and ``http`` for Triton, ``openai`` for ``/v1/completions``, ``openai-chat`` for
    ``/v1/chat/completions``; ``None``: ``grpc`` where the server is Triton, else ``openai``."""
    streaming: bool | None = None
    """Whether answers are streamed token by token; ``None``: if the model is decoupled, and over OpenAI's
    protocol."""
    request_timeout_seconds: Annotated[float, Field(gt=0, le=31_536_000), Time(1)] = 60.0
    """A request that takes longer has failed."""
    max_tokens_key: Literal["max_tokens", "max_completion_tokens"] | None = None
    """Key of the body over OpenAI's protocol with the most output tokens; ``None``: ``max_tokens``, unless
    the server refuses the first request for it."""
    include_usage: bool | None = None
    """Whether streams over OpenAI's protocol are asked for the server's count of tokens (``stream_options``);
    ``None``: unless the server refuses the first request for it."""
    extra_body: dict[str, Any] = Field(default={})
    """Further keys of the body of each request over OpenAI's protocol, such as ``temperature``,
    ``reasoning_effort`` or ``chat_template_kwargs``."""
    headers: dict[str, OneLine] = Field(default={})
    """Further headers of each request. Of one whose name says that it holds a secret, such as ``api-key`` or
    ``Authorization``, results have only the name."""

    @field_serializer("headers", when_used="json")
    def _without_secrets(self, headers: dict[str, str]) -> dict[str, str]:
        return {name: "(secret)" if _SECRET.search(name) else value for name, value in headers.items()}

    # The load ----------------------------------------------------------------------------------
    rate_per_second: Rate = 4.0
    """Open loop: requests are sent at this rate, even if earlier ones are not answered yet."""
    rates_per_second: list[Rate] = Field(default=[])
    """A sweep: these rates instead of ``rate_per_second``, one after the other."""
    concurrency: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """A closed loop instead of a rate: the number of requests in flight; each answer makes room for the next
    request."""
    concurrencies: list[Annotated[int, Field(ge=1, le=100_000)]] = Field(default=[])
    """A sweep of closed loops: these numbers of requests in flight, one after the other."""
    arrival: Literal["constant", "poisson", "gamma", "trace"] = "poisson"
    """Gaps between requests: equal (``constant``), random, or those of a trace."""
    burstiness: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Shape of ``gamma`` arrivals: 1 is Poisson, less is bursty, much more is nearly constant."""
    requests: Count | None = 20
    """Measured requests at each level; ``None`` needs ``duration_seconds``."""
    duration_seconds: Annotated[float, Field(gt=0, le=31_536_000), Time(1)] | None = None
    """Length of the measured window at each level, instead of ``requests``."""
    warmup_requests: Annotated[int, Field(ge=0, le=1_000_000)] | None = 2
    """Requests of the same load before the window; recorded, but left out of the figures."""
    warmup_seconds: Annotated[float, Field(ge=0, le=86_400), Time(1)] | None = None
    """Length of the warm-up, instead of ``warmup_requests``."""
    repeats: Annotated[int, Field(ge=1, le=1000)] = 1
    """Passes over each level; with two or more, figures have confidence intervals. A search makes three."""

    processes: Annotated[int, Field(ge=1, le=256)] = 1
    """Client processes that share the load, at most a core each; a warning says when there are too few."""

    # Validity ----------------------------------------------------------------------------------
    slo: OneLine | None = None
    """Limits such as ``ttft.p99<500ms,tpot.p99<50ms``: for goodput, and for ``find_max``."""
    find_max: bool = False
    """Search for the highest rate at which ``slo`` holds, starting at ``rate_per_second``."""
    max_error_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """A larger share of failed requests makes the figures invalid."""
    max_failures_in_a_row: Annotated[int, Field(ge=0, le=1_000_000)] = 50
    """The measurement ends when so many requests in a row have failed, counting only requests that were sent
    after the first failure; 0: never."""
    max_late_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """A larger share of requests that the client sent late (by over 1 ms and 2 % of the median TTFT) makes
    the figures invalid; up to a tenth only if that is over 5 % of a median or 99th percentile of latencies.
    With 1 neither delays of the client nor late stamps make them invalid."""
    min_requests: Count = 10
    """Fewer measured requests make the figures invalid."""
    min_window_seconds: Annotated[float, Field(ge=0, le=86_400), Time(1)] = 1.0
    """A shorter measured window makes the figures invalid."""

    @property
    def replays(self) -> bool:
        """Whether each pass sends the same requests from the beginning: those of a file with times."""
        return self.workload.kind == "trace" or self.arrival == "trace"

    @property
    def closed_loop(self) -> bool:
        """Whether requests are sent when answers arrive, not at given times."""
        return self.concurrency is not None or bool(self.concurrencies)


Score = Annotated[float, Field(ge=0, le=1)]


class Evaluation(Section):
    """Tasks of EleutherAI's ``lm-eval``, asked over OpenAI's protocol, and the gate that a run must pass.

    Where a key is ``None``, the shipped settings of the task count, then the task's own.
    """

    tasks: Annotated[list[OneLine], Field(min_length=1)]
    """Names of ``lm-eval``'s tasks or groups, or of shipped tasks: ``facts``. Their answers are generated."""
    limit: Count | None = None
    """Ask only so many questions of each task, the first ones."""
    few_shot: Annotated[int, Field(ge=0, le=100)] | None = None
    """Solved examples before each question."""
    threshold: Score | None = None
    """The gate: each task needs at least this score, between 0 and 1."""
    not_worse_than: OneLine | None = None
    """The gate: id or folder of an evaluated run. A task fails if a paired one-sided test finds that this run
    answers the common questions worse."""
    protocol: Literal["completions", "chat"] | None = None
    """``chat``: ``/v1/chat/completions``, through the model's chat template. ``completions``: plain text."""
    metric: OneLine | None = None
    """The metric as ``lm-eval`` names it, e.g. ``exact_match,flexible-extract``; ``None``: the first."""
    max_tokens: TokenCount | None = None
    """Most tokens of an answer."""
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    """Randomness of the answers, for models that must not be asked at 0."""
    data: AbsolutePath | None = None
    """Folder of ``evaluate --prepare``'s data sets; ``None``: ``~/.cache/trtllm-hpc/evaluation``."""
