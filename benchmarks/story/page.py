"""docs/explanation/gpu.md from the figures."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.story.bounds import JUDGED, verdicts
from benchmarks.story.figures import (
    Figures,
    Record,
    decode_steps,
    gpus_of,
    level_of,
    loading_over_reading,
    pace_of,
    slowed_by_long_prompts,
)
from benchmarks.story.start import TOTAL

MODELS = ("tensorrt_llm", "ensemble", "tensorrt_llm_bls")
NOTHING = "-"
PLOTS = {
    "throughput": "Output tokens a second by requests at once",
    "latency": "Time to first token and inter-token time of streams by requests at once",
    "start": "Phases from submit to ready",
}

_INTRODUCTION = """
What a user gets who submits a job file with the reference backend to a Slurm cluster with GPUs. This page
is written by `python -m benchmarks.gpu_story`; its figures are in [gpu.json](gpu.json). The backend stands
in for TensorRT-LLM and does not compete with it:
[the reference backend](../reference/reference-backend.md).
"""

_HOW = (
    """
    Each story is a job file, submitted to a real Slurm: a
    [sandbox](../how-to/sandbox.md) whose nodes share out the GPUs of one machine
    (`sandbox up --gpus real`), unless a profile was named. Nodes have their own network: between two of them
    NCCL goes through sockets, not through NVLink, so two nodes of one machine are slower than its two GPUs on
    one node. A single server is asked directly (`serve.door: none`); two instances are behind a door.
    """,
    """
    A first start finds no engine and builds it; it is cancelled when the server is ready. The second start
    finds the engine, and all loads are measured on that server, one after another, by `trtllm-hpc bench` on
    the same machine. Whole answers to many requests at once come in bursts, so over a few seconds their rate
    is only as exact as the number of bursts; ratios are therefore of the mean times of answers. A response
    with several tokens counts as that many equal inter-token times, see
    [metrics](../reference/metrics.md#between-tokens).
    """,
)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        numbers = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return f"| {' | '.join([cells[0].ljust(widths[0]), *numbers])} |"

    rule = f"|{'|'.join(['-' * (widths[0] + 2), *('-' * (width + 1) + ':' for width in widths[1:])])}|"
    return "\n".join([line(head), rule, *(line(row) for row in rows)])


def page(figures: Figures, images: Mapping[str, str]) -> str:
    """The page in Markdown.

    Args:
        figures: of all stories.
        images: file names of the plots in ``img/``, by what they show.
    """
    parts = [_introduction(figures), _bounds(figures)]
    parts += [_image("throughput", images), _image("latency", images)]
    for name, story in figures.stories.items():
        parts += _story(name, story)
    parts += ["## From submit to ready", _starts(figures), _image("start", images), _how(figures)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _introduction(figures: Figures) -> str:
    settings = figures.settings
    return "\n\n".join(
        [
            "# The reference backend on GPUs",
            _paragraph(_INTRODUCTION),
            _paragraph(
                f"The model is `{settings.model}`, random weights in {settings.dtype}. Prompts have "
                f"{settings.input_tokens} tokens, and answers exactly {settings.output_tokens}. Each figure "
                "is from one closed loop: that many requests at once, and after each answer the next one."
            ),
        ]
    )


def _paragraph(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def _bounds(figures: Figures) -> str:
    judged = verdicts(figures)
    if not judged:
        return ""
    rows = [
        [
            verdict.what,
            f"{verdict.value:.2f}",
            f"{'at least' if verdict.at_least else 'at most'} {verdict.limit:g}",
            "kept" if verdict.kept else "**broken**",
        ]
        for verdict in judged
    ]
    return f"## Bounds\n\nOn one GPU (`{JUDGED}`):\n\n{table(['', 'measured', 'must be', ''], rows)}"


def _story(name: str, story: Record) -> Iterator[str]:
    yield f"## `{name}`: {story.get('title', '')}"
    if story.get("failure"):
        failure = " ".join(str(story["failure"]).split())
        yield f"**Not complete.** {failure}"
    if not story.get("levels"):
        return
    yield _where(story)
    yield f"Output tokens/s by requests at once:\n\n{_rates(story)}"
    yield f"Streams, in ms, p50 / p99:\n\n{_latencies(story)}"
    yield _prompts(story)
    yield _findings(story)


def _where(story: Record) -> str:
    server, client = story["provenance"]["server"], story["provenance"]["client"]
    versions = story["provenance"].get("engine", {}).get("versions", {})
    gpus = gpus_of(story)
    hardware = f"{len(gpus)} x {_model(gpus[0])}" if gpus else f"{client['cpus_of_host']} cores, no GPU"
    nodes = len(server["nodes"])
    libraries = ", ".join(
        f"{name} {versions[name]}" for name in ("torch", "transformers") if name in versions
    )
    ranks = f"{server['world_size']} rank{'s' * (server['world_size'] != 1)}"
    if (instances := server.get("instances", 1)) > 1:
        ranks = f"{instances} instances of {ranks}"
    return _paragraph(
        f"{story['settings']['measured_at']}: {ranks} on {nodes} node{'s' * (nodes != 1)}, {hardware}; "
        f"{client['cpu']}, {client['cpus_of_host']} cores; {libraries}. "
        f"Measurements of {story['settings']['seconds']:g} s."
    )


def _model(gpu: str) -> str:
    """Name, driver and memory of a GPU, as the preflight's query of nvidia-smi gave them."""
    name, _, rest = gpu.partition(",")
    driver, _, memory = rest.partition(",")
    return f"{name.strip()} ({memory.strip()}, driver {driver.strip()})" if memory else gpu


def _rates(story: Record) -> str:
    counts = story["settings"]["concurrency"]
    rows = []
    for model in MODELS:
        for streamed in (False, True):
            cells = [_rate(level_of(story, model, count, streamed=streamed)) for count in counts]
            rows.append([f"`{model}`, {_mode(streamed)}", *cells])
        ratios = [_share(story, model, count) for count in counts]
        rows.append([f"`{model}`, streamed / whole", *ratios])
    return table(["", *map(str, counts)], rows)


def _mode(streamed: bool) -> str:
    return "streamed" if streamed else "whole answers"


def _rate(level: Record | None) -> str:
    if level is None or level["output_tokens_per_s"] is None:
        return NOTHING
    rate = level["output_tokens_per_s"]
    text = f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}"
    return f"{text}\\*" if level["findings"] else text


def _share(story: Record, model: str, count: int) -> str:
    streamed, whole = (pace_of(story, model, count, streamed=it) for it in (True, False))
    return f"{streamed / whole:.2f}" if streamed and whole else NOTHING


def _latencies(story: Record) -> str:
    counts = story["settings"]["concurrency"]
    names = {"ttft_from_send_ms": "time to first token", "itl_ms": "inter-token time"}
    rows = [
        [
            f"`{model}`, {name}",
            *(_percentiles(level_of(story, model, count, streamed=True), key) for count in counts),
        ]
        for key, name in names.items()
        for model in MODELS
    ]
    return table(["", *map(str, counts)], rows)


def _percentiles(level: Record | None, key: str) -> str:
    if level is None or key not in level:
        return NOTHING
    return f"{_milliseconds(level[key]['p50'])} / {_milliseconds(level[key]['p99'])}"


def _milliseconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _prompts(story: Record) -> str:
    """The sentences on prompts: a lone one, and long ones beside streams."""
    sentences = []
    steps = decode_steps(story)
    if steps is not None:
        sentences.append(
            f"The first token of a lone request to `tensorrt_llm` takes as long as {steps:.1f} decode steps "
            "(p50 of both)."
        )
    slowed, found = slowed_by_long_prompts(story), story.get("long_prompts")
    if slowed is not None and found is not None:
        alone, beside = found["alone"]["itl_ms"], found["beside"]["itl_ms"]
        took = _percentiles(found["prompt"], "ttft_from_send_ms")
        sentences.append(
            f"{found['streams']} streams have an inter-token time of {_both(alone)} ms (p50 / p99). While "
            f"prompts of {story['settings']['long_prompt']:,} tokens arrive one after another, each as soon "
            f"as the one before is answered, it is {_both(beside)} ms: p99 is {slowed:.1f} times as long. "
            f"The first token of such a prompt takes {took} ms."
        )
    elif found is not None:
        sentences.append(
            f"Beside prompts of {story['settings']['long_prompt']:,} tokens, too few streams were answered "
            "in time to give a figure."
        )
    return _paragraph(" ".join(sentences))


def _both(distribution: Mapping[str, float]) -> str:
    return f"{_milliseconds(distribution['p50'])} / {_milliseconds(distribution['p99'])}"


def _findings(story: Record) -> str:
    """Why figures with an asterisk are not valid."""
    lines = []
    for level in story["levels"]:
        # The first sentence of a finding says what is wrong, the rest what to type.
        reasons = " ".join(f"{finding.partition('. ')[0].rstrip('.')}." for finding in level["findings"])
        if reasons:
            what = f"`{level['model']}`, {_mode(level['streamed'])}, {level['concurrency']} at once"
            lines.append(f"- {what}: {reasons}")
    return "\n".join(["\\* Not valid, by the rules of `trtllm-hpc bench`:", "", *lines]) if lines else ""


def _starts(figures: Figures) -> str:
    starts = [
        (f"`{name}`, {which}", start)
        for name, story in figures.stories.items()
        for which, start in zip(("first", "second"), story.get("starts", []), strict=False)
    ]
    if not starts:
        return "No start was measured."
    phases = list(dict.fromkeys(it for _, start in starts for it in start["phases_s"] if it != TOTAL))
    rows = [
        [label, *(_second(start["phases_s"].get(phase)) for phase in (*phases, TOTAL))]
        for label, start in starts
    ]
    return "\n\n".join([table(["seconds", *phases, TOTAL], rows), _loading(starts)])


def _second(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}"


def _loading(starts: Sequence[tuple[str, Record]]) -> str:
    """What the leader's log says of loading, and what a second start is bounded by."""
    lines = []
    for label, start in starts:
        over = loading_over_reading(start)
        bound = "" if over is None else f" Loading took {over:.1f} times as long as libraries and weights."
        lines.append(f"- {label}: {'; '.join(start['loading']) or 'nothing'}.{bound}")
    return "\n".join(["What the leader's log says of loading:", "", *lines])


def _how(figures: Figures) -> str:
    settings = figures.settings
    counts = ",".join(map(str, settings.concurrency))
    stories = ",".join(figures.stories)
    command = (
        f"$ python -m benchmarks.gpu_story --stories {stories} --model {settings.model} \\\n"
        f"    --dtype {settings.dtype} --concurrency {counts} --seconds {settings.seconds:g}"
    )
    paragraphs = (_paragraph(text) for text in _HOW)
    return "\n\n".join(["## How it was measured", *paragraphs, f"```console\n{command}\n```"])


def _image(name: str, images: Mapping[str, str]) -> str:
    return f"![{PLOTS[name]}](img/{images[name]})" if name in images else ""
