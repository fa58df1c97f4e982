"""What a report is made of, read from the run folder."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from trtllm_hpc.bench.records import RequestRecord, read_records
from trtllm_hpc.bench.server_metrics import ServerSample, read_samples
from trtllm_hpc.bench.summary import Interval, LevelResult, Measurement, read_measurement
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.report.html.phases import Story, read_story

KEPT_UP = 0.95
"""Share of the requests sent each second that a server finishes which keeps up with them; the ends of a
short window take a little away."""


@dataclass(frozen=True)
class Material:
    """One measurement with everything that was recorded of it."""

    run: str
    """The run's id."""
    measurement: Measurement
    records: list[RequestRecord]
    samples: list[ServerSample]
    story: Story

    @cached_property
    def labels(self) -> list[str]:
        """What each level is called; levels of one name are numbered."""
        names = [result.level.label for result in self.measurement.levels]
        twice = {name for name, count in Counter(names).items() if count > 1}
        return [
            f"{name} ({names[: place + 1].count(name)})" if name in twice else name
            for place, name in enumerate(names)
        ]

    @cached_property
    def headline(self) -> int | None:
        """The level whose figures stand for the measurement; ``None`` without levels.

        The one that the search found; else, of those that are valid (of all
        if none is), the highest load that the server kept up with; else the
        one with the most requests finished each second.
        """
        levels = self.measurement.levels
        search = self.measurement.search
        if search is not None and search.max_rate_per_s is not None:
            for tried in search.tried:
                if tried.rate_per_s == search.max_rate_per_s and tried.holds:
                    return tried.level
        usable = [place for place, result in enumerate(levels) if is_valid(result)] or range(len(levels))
        kept_up = [place for place in usable if keeps_up(levels[place])]
        return max(kept_up or usable, key=lambda place: finished_rate(levels[place]), default=None)

    def of_pass(self, level: int, repeat: int) -> list[RequestRecord]:
        """The records of one pass, in the order in which they were due."""
        chosen = [record for record in self.records if (record.level, record.repeat) == (level, repeat)]
        return sorted(chosen, key=lambda record: record.scheduled_s)


def is_valid(result: LevelResult) -> bool:
    """Whether the figures of every pass over the level may be used."""
    return all(one.verdict.valid for one in result.passes)


def read_material(paths: RunPaths, name: str) -> Material:
    """Read a measurement and what belongs to it.

    Raises:
        RunNotFound: there is no such measurement, or it is another version's.
    """
    files = paths.measurement(name)
    measurement = read_measurement(files.summary)
    records = read_records(files.requests) if files.requests.exists() else []
    return Material(paths.run_id, measurement, records, read_samples(files.samples), read_story(paths))


def keeps_up(result: LevelResult) -> bool:
    """Whether the server finished nearly as many requests each second as were sent."""
    sent = result.metrics.get("sent_rate_per_s")
    return isinstance(sent, Interval) and finished_rate(result) >= KEPT_UP * sent.mean


def finished_rate(result: LevelResult) -> float:
    """Requests finished each second, over all passes; 0 if none was."""
    rate = result.metrics.get("finished_rate_per_s")
    return rate.mean if isinstance(rate, Interval) else 0.0
