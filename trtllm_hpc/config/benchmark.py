"""What the benchmark asks, how fast, and when its figures count: ``companion.benchmark`` of a job file.

``trtllm-hpc bench`` takes the same settings as options, and starts from those of the run's job file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from trtllm_hpc.config.types import AbsolutePath, AnyText, Count, OneLine, Section, TokenCount

Rate = Annotated[float, Field(gt=0, le=100_000)]
Deviation = Annotated[float, Field(ge=0, le=1_000_000)]


SEARCH_WINDOW_S = 5.0
"""A search does not know its rates beforehand: a number of requests that is enough at the first of them
would be over in no time at the last. It asks for as many as such a window takes."""


class Workload(Section):
    """Where prompts and lengths of answers come from. Each key says of which kinds it is."""

    kind: Literal["prompts", "dataset", "normal", "histogram", "shared-prefix", "trace"] = "prompts"
    """``prompts``: those given, in a seeded order. ``dataset``: a file of questions. ``normal``: lengths
    drawn from normal distributions. ``histogram``: lengths drawn from a file of bins. ``shared-prefix``:
    prompts that begin alike, for KV cache reuse. ``trace``: a recorded file with time stamps."""
    prompts: list[AnyText] = Field(default_factory=list)
    """prompts: empty takes the built-in ones."""
    path: AbsolutePath | None = None
    """dataset, histogram, trace: the file."""
    input_tokens: TokenCount = 128
    """normal: mean length of a prompt. shared-prefix: mean length of what follows the prefix."""
    input_tokens_stdev: Deviation = 0.0
    output_tokens: TokenCount | None = None
    """normal, shared-prefix: mean length of an answer; ``None`` is ``max_tokens``."""
    output_tokens_stdev: Deviation = 0.0
    prefix_tokens: TokenCount = 256
    """shared-prefix: length of each prefix."""
    prefixes: Count = 1
    """shared-prefix: different prefixes, which take turns."""
    tokens_per_word: Annotated[float, Field(gt=0, le=100)] = 1.3
    """dataset: tokens of an answer for each of its words, upstream's ``--op-tokens-per-word``."""
    speed: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """trace: its time runs so many times faster."""
    max_input_tokens: TokenCount | None = None
    """Longer prompts are left out (upstream's ``--max-input-len``); ``None`` is the engine's limit."""
    tokenizer: AbsolutePath | None = None
    """Folder with ``tokenizer.json``; ``None`` asks the model's folder, then the server."""


class Benchmark(Section):
    """One measurement: a workload, one or more levels of load, and what makes its figures valid."""

    @classmethod
    def with_defaults(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """Seconds take the place of a number of requests; a trace has its own times; a search repeats."""
        for seconds, requests in (("duration_seconds", "requests"), ("warmup_seconds", "warmup_requests")):
            if plain.get(seconds) is not None and requests not in plain:
                plain = {**plain, requests: None}
        if plain.get("find_max") and "repeats" not in plain:
            plain = {**plain, "repeats": 3}
        workload = plain.get("workload")
        kind = workload.get("kind") if isinstance(workload, dict) else getattr(workload, "kind", None)
        if kind == "trace":
            whole = {"arrival": "trace", "requests": None, "warmup_requests": 0}
            plain = {**whole, **plain}
        return plain

    workload: Workload = Workload()
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Of prompts, lengths and arrivals; each repeat has arrivals of its own."""
    max_tokens: TokenCount = 16
    """Most output tokens of a request, where the workload names no length."""
    exact_output: bool = False
    """Whether answers must have exactly the length asked for; asks the model for it as ``min_length``."""

    # Whom it asks ------------------------------------------------------------------------------
    model: OneLine | None = None
    """``ensemble``, ``tensorrt_llm_bls``, ``tensorrt_llm``...; ``None`` is the run's text model."""
    models: list[OneLine] = Field(default_factory=list)
    """Several of one kind that take turns, such as copies of ``tensorrt_llm``; gRPC only."""
    protocol: Literal["grpc", "http"] = "grpc"
    streaming: bool | None = None
    """Whether tokens are asked for as they come; ``None``: if the model is decoupled."""
    request_timeout_seconds: Annotated[float, Field(gt=0, le=31_536_000)] = 60.0

    # The load ----------------------------------------------------------------------------------
    rate_per_second: Rate = 4.0
    """Open loop: requests are sent at this rate, whether or not earlier ones are answered."""
    rates_per_second: list[Rate] = Field(default_factory=list)
    """A sweep: these rates one after the other instead."""
    concurrency: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Closed loop instead: so many requests outstanding; an answer makes room for the next."""
    concurrencies: list[Annotated[int, Field(ge=1, le=100_000)]] = Field(default_factory=list)
    """A sweep of closed loops."""
    arrival: Literal["constant", "poisson", "gamma", "trace"] = "poisson"
    burstiness: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Shape of ``gamma`` gaps: 1 is Poisson, below 1 comes in bursts, large is constant."""
    ramp_to_per_second: Rate | None = None
    """Open loop: the rate moves evenly from ``rate_per_second`` to this while it is measured."""
    requests: Count | None = 20
    """Measured requests of each level; ``None`` needs ``duration_seconds``."""
    duration_seconds: Annotated[float, Field(gt=0, le=31_536_000)] | None = None
    """Length of the measured window of each level instead."""
    warmup_requests: Annotated[int, Field(ge=0, le=1_000_000)] | None = 2
    """Requests of the same load before the window, recorded but left out of the figures."""
    warmup_seconds: Annotated[float, Field(ge=0, le=86_400)] | None = None
    """Length of the warm-up instead."""
    repeats: Annotated[int, Field(ge=1, le=1000)] = 1
    """Passes over each level; from two on the figures have confidence intervals. A search makes three."""

    processes: Annotated[int, Field(ge=1, le=256)] = 1
    """Processes of the client that share the load, each at most a core; the gate says when one is too few."""

    # What counts -------------------------------------------------------------------------------
    slo: OneLine | None = None
    """Limits such as ``ttft.p99<500ms,tpot.p99<50ms``: for goodput, and for ``find_max``."""
    find_max: bool = False
    """Find the highest rate at which ``slo`` holds, beginning at ``rate_per_second``."""
    max_error_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """More failed requests than this make the figures invalid."""
    max_late_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """More requests than this that the client sent late (by over 1 ms and 1 % of the gap) do, too."""
    min_requests: Count = 10
    """Fewer measured requests than this make the figures invalid."""
    min_window_seconds: Annotated[float, Field(ge=0, le=86_400)] = 1.0
    """A shorter measured window makes the figures invalid."""

    @property
    def closed_loop(self) -> bool:
        """Whether answers decide when requests are sent, and not times."""
        return self.concurrency is not None or bool(self.concurrencies)
