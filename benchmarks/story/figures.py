"""The figures of all stories: one JSON file, written again after each measurement."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trtllm_hpc.paths import write_text

FORMAT = 1
"""Version of the file."""

Record = dict[str, Any]
"""Plain JSON types."""


class NotComparable(Exception):
    """The file's figures cannot stand beside new ones, or cannot be read."""


@dataclass(frozen=True)
class Settings:
    """What all stories have in common."""

    model: str
    dtype: str
    input_tokens: int
    output_tokens: int
    long_prompt: int
    """Tokens of a long prompt."""
    concurrency: tuple[int, ...]
    seconds: float
    """Length of each measurement."""


@dataclass
class Figures:
    """The settings, and a record for each story by its name."""

    file: Path
    settings: Settings
    stories: dict[str, Record] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path, wanted: Settings | None = None) -> Figures:
        """Read a file that an earlier run wrote.

        Args:
            wanted: settings of the run that adds to it; concurrency and seconds may differ.

        Raises:
            NotComparable: there is none, it has another format, or its settings are others.
        """
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise NotComparable(
                f"{file} cannot be read: {error}. Leave out --add and --page-only."
            ) from error
        if raw.get("format") != FORMAT:
            raise NotComparable(f"{file} has format {raw.get('format')}, not {FORMAT}. Leave out --add.")
        settings = Settings(**{**raw["settings"], "concurrency": tuple(raw["settings"]["concurrency"])})
        if wanted is not None:
            same = replace(settings, concurrency=wanted.concurrency, seconds=wanted.seconds)
            if same != wanted:
                raise NotComparable(f"{file} was measured with other settings: {settings}. Leave out --add.")
        return cls(file, wanted or settings, raw["stories"])

    def begin(self, name: str, record: Record) -> Record:
        """Replace a story's record and return it."""
        self.stories[name] = record
        self.write()
        return record

    def fail(self, name: str, sentence: str) -> None:
        """Note why a story has not all figures."""
        self.stories.setdefault(name, {})["failure"] = sentence
        self.write()

    def write(self) -> None:
        """Write the file."""
        record = {"format": FORMAT, "settings": asdict(self.settings), "stories": self.stories}
        write_text(self.file, json.dumps(record, indent=1) + "\n", mode=0o644)


def level_of(story: Record, model: str, concurrency: int, *, streamed: bool) -> Record | None:
    """The figures of one closed loop; ``None`` if it was not measured."""
    wanted = (model, concurrency, streamed)
    levels = story.get("levels", [])
    return next((it for it in levels if (it["model"], it["concurrency"], it["streamed"]) == wanted), None)


def rate_of(story: Record, model: str, concurrency: int, *, streamed: bool) -> float | None:
    """Output tokens a second of one closed loop."""
    level = level_of(story, model, concurrency, streamed=streamed)
    return None if level is None else level["output_tokens_per_s"]


def pace_of(story: Record, model: str, concurrency: int, *, streamed: bool) -> float | None:
    """Output tokens a second of one closed loop, from the mean time of an answer.

    That is as exact for whole answers as for streams. The rate in a window of seconds is not: whole
    answers count when they end, and those to many requests at once end together.
    """
    level = level_of(story, model, concurrency, streamed=streamed)
    if level is None or not {"latency_from_send_ms", "output_tokens"} <= level.keys():
        return None
    answer_s = level["latency_from_send_ms"]["mean"] / 1e3
    return float(concurrency * level["output_tokens"]["mean"] / answer_s)


def gpus_of(story: Record) -> list[str]:
    """The GPUs of each node as nvidia-smi names them; empty if the ranks computed on CPUs."""
    ranks = story.get("provenance", {}).get("server", {}).get("ranks", [])
    return [gpu for rank in ranks for gpu in rank.get("gpu_models", [])]


def decode_steps(story: Record) -> float | None:
    """Time to first token of a lone request, in decode steps: its inter-token time at the median."""
    level = level_of(story, "tensorrt_llm", 1, streamed=True)
    if level is None or not {"ttft_from_send_ms", "itl_ms"} <= level.keys():
        return None
    return float(level["ttft_from_send_ms"]["p50"] / level["itl_ms"]["p50"])


def slowed_by_long_prompts(story: Record) -> float | None:
    """Inter-token p99 of streams beside long prompts, over that of streams alone."""
    found = story.get("long_prompts")
    if not found or "itl_ms" not in found["alone"] or "itl_ms" not in found["beside"]:
        return None
    return float(found["beside"]["itl_ms"]["p99"] / found["alone"]["itl_ms"]["p99"])


def loading_over_reading(start: Record) -> float | None:
    """The phase of loading, over importing the libraries and reading the weights."""
    if start["libraries_s"] is None or start["weights_s"] is None:
        return None
    return float(start["phases_s"]["load"] / (start["libraries_s"] + start["weights_s"]))
