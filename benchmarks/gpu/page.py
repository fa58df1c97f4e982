"""The page ``docs/explanation/gpu.md``, written from kept results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from benchmarks.gpu.machine import REQUESTS, Figures

_HEAD = """\
# A real engine on a real GPU

This toolkit with vLLM on NVIDIA's H200, under a real Slurm: `submit` with `engine.backend: command`, the
proxy with its key, `bench` and energy. `python -m benchmarks.gpu` writes this page,
and runs each story singly; the figures are in [gpu.json](gpu.json).

SmolLM2 is SmolLM2-135M-Instruct with its weights. The *8B shape* is Llama 3.1 8B with SmolLM2's vocabulary
and random weights (7.4 billion): its speed is that of a real model, its answers mean nothing. Unless the text
says otherwise, loads are closed loops of prompts of 128 tokens, no two of which begin alike, with answers of
exactly 128 tokens.
"""
_MODELS = {"smollm2": "SmolLM2", "shape-8b": "8B shape"}


def _table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(headers)} |", "|---" + "|--:" * (len(headers) - 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def _of(results: dict[str, Figures], story: str, client: str) -> Iterable[tuple[int, list[Figures]]]:
    """Yield the figures of one client in all rounds, for each number of streams."""
    rounds = results[story]["rounds"] if story in results else ()
    for streams in REQUESTS:
        figures = [row[client] for row in rounds if row["streams"] == streams]
        if figures:
            yield streams, figures


def _middle(figures: Sequence[Figures], key: str) -> float:
    return float(median(it[key] for it in figures))


def _beside(results: dict[str, Figures]) -> Iterable[str]:
    """Ours beside vLLM's own client."""
    rows = list[list[str]]()
    for story, model in _MODELS.items():
        for (streams, ours), (_, vllm) in zip(
            _of(results, story, "ours"), _of(results, story, "vllm"), strict=True
        ):
            ratio = _middle(ours, "tokens_per_s") / _middle(vllm, "tokens_per_s")
            rates = [_spread([it["tokens_per_s"] for it in figures]) for figures in (ours, vllm)]
            times = [
                f"{_middle(ours, key):,.{digits}f} / {_middle(vllm, key):,.{digits}f}"
                for key, digits in (("ttft_p50_ms", 0), ("tpot_p50_ms", 2))
            ]
            rows.append([f"{model}, {streams}", *rates, f"{ratio:.2f}", *times])
    if rows:
        yield "## One GPU, beside `vllm bench serve`"
        yield (
            "Both clients load the same server through the same proxy, in turns, for three rounds; each "
            "round begins with the other client. Output tokens/s: median of the rounds (lowest to highest)."
        )
        clients = ("ours: tokens/s", "vLLM's: tokens/s", "ratio", "TTFT p50, ms", "TPOT p50, ms")
        yield _table(("model, streams", *clients), rows)
        yield (
            "The last two columns show ours / vLLM's. `vllm bench serve` divides all tokens by the whole "
            "time, with the start and the end of the load; ours counts only the time in which all streams "
            "are busy."
        )


def _energy(results: dict[str, Figures]) -> Iterable[str]:
    """The energy of a token, in two ways."""
    rows = list[list[str]]()
    for story, model in (*_MODELS.items(), ("energy", "8B shape")):
        for streams, ours in _of(results, story, "ours"):
            read = [it for it in ours if it.get("counter_j")]
            if read:
                shares = [
                    it["power_w"] * (it["window"][1] - it["window"][0]) / it["counter_j"] for it in read
                ]
                joules, watts = _middle(read, "energy_per_token_j"), _middle(read, "power_w")
                quotient = f"{min(shares):.3f} to {max(shares):.3f}"
                rows.append([f"{model}, {streams}", f"{joules * 1e3:,.1f}", f"{watts:,.0f}", quotient])
    if rows:
        yield "## Energy"
        yield (
            "The ranks read the power of their GPUs ten times a second. The last column divides the energy "
            "from these readings by the increase of NVML's energy counter over the same time."
        )
        yield _table(("model, streams", "mJ a token", "mean W", "read / counter"), rows)


def _levels(results: dict[str, Figures]) -> Iterable[str]:
    """Two instances, and tensor parallel 2."""
    for story, title in (
        ("instances", "## Two instances of SmolLM2 behind the proxy"),
        ("tensor-parallel", "## The 8B shape on two GPUs, tensor parallel"),
    ):
        if story in results:
            yield title
            yield _table(
                ("streams", "tokens/s", "TTFT p50, ms", "TPOT p50, ms", "mJ a token"),
                [
                    (
                        streams,
                        _number(it["tokens_per_s"], 0),
                        _number(it["ttft_p50_ms"], 0),
                        _number(it["tpot_p50_ms"], 2),
                        _number(it["energy_per_token_j"] * 1e3) if it["energy_per_token_j"] else "-",
                    )
                    for streams, it in results[story]["levels"].items()
                ],
            )


def _others(results: dict[str, Figures]) -> Iterable[str]:
    """Routing, sweep, evaluation and faults."""
    if "routing" in results:
        ways = results["routing"]
        yield "## Routing of conversations"
        yield (
            "50 conversations of 6 turns (600 tokens a turn, answers of 64) over two instances of SmolLM2, "
            "all at once. `serve.routing: session` keeps a conversation at one instance, whose prefix cache "
            "has its beginning; `least` gives each turn to the instance with the fewest open requests. "
            f"{ways['counted']} With so small a model a prefill costs little, so an even load counts for "
            "more than hits do."
        )
        turns = list(ways["least"]["ttft_p50_ms_by_turn"])
        yield _table(
            ("routing", "prefix cache hits", *(f"TTFT p50 of turn {turn}, ms" for turn in turns)),
            [
                (
                    f"`{way}`",
                    f"{ways[way]['hit_share']:.0%}",
                    *(_number(ways[way]["ttft_p50_ms_by_turn"][turn], 0) for turn in turns),
                )
                for way in ("least", "session")
            ],
        )
    if "sweep" in results:
        found = results["sweep"]
        yield "## A sweep of `--max-num-seqs` in one allocation"
        yield found["best"]
        yield _table(
            ("variant, load", "tokens/s/GPU", "tokens/s/user", "on the frontier"),
            [
                (
                    f"{it['variant']}, {it['level']}",
                    _number(it["output_tokens_per_s_per_gpu"], 0),
                    _number(it["tokens_per_s_per_user"]),
                    "yes" if it["frontier"] else "",
                )
                for it in found["points"]
            ],
        )
    if "evaluation" in results:
        yield "## Does it still answer well?"
        yield "The shipped task `facts`, threshold 0.3, with SmolLM2's own chat template and with another."
        yield _table(
            ("chat template", "score", "gate", "exit code"),
            [
                (name, f"{it['score']:.1%}", "passed" if it["passed"] else "failed", it["exit_code"])
                for name, it in results["evaluation"]["templates"].items()
            ],
        )
    if "faults" in results:
        yield "## Faults"
        yield (
            "The cause that `explain` names. It counts as right if it matches an expression that was written "
            "before the fault was injected."
        )
        yield _table(
            ("fault", "right", "seconds", "exit code", "cause"),
            [
                (
                    name,
                    "yes" if it["right"] else "no",
                    _number(it["seconds"], 0),
                    it["exit_code"],
                    it["explain"].splitlines()[-1].replace("|", "\\|"),
                )
                for name, it in results["faults"]["faults"].items()
            ],
        )


def written(results: dict[str, Any], stories: Iterable[str]) -> str:
    """Return the page; it names the stories that have no results."""
    runs = [
        (story, it["card"], it["driver"], it["vllm"], it["date"], f"{it['took_s']} s")
        for story, it in results.items()
    ]
    parts = [_HEAD, _table(("story", "GPUs", "driver", "vLLM", "date", "seconds"), runs)]
    missing = ", ".join(f"`{name}`" for name in stories if name not in results)
    if missing:
        parts.append(f"Written and not yet run on a GPU: {missing}.")
    return (
        "\n\n".join(
            [*parts, *_beside(results), *_energy(results), *_levels(results), *_others(results)]
        ).replace("\n\n\n", "\n\n")
        + "\n"
    )
