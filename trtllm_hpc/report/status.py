"""The stages of a run as a table; its engine, resource use, proxy clients and ranks in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from trtllm_hpc.bench.progress import clock_text
from trtllm_hpc.report.formatting import format_duration, format_time, quantity
from trtllm_hpc.report.tables import Table
from trtllm_hpc.runs.guests import ProxyClient
from trtllm_hpc.runs.status import RunStatus, StageStatus

if TYPE_CHECKING:
    from trtllm_hpc.engine_cache import CachedEngine

_STYLES = {"COMPLETED": "green", "RUNNING": "cyan", "PENDING": "yellow", "NOT SUBMITTED": "dim"}


def status_table(stages: Sequence[StageStatus], now: float) -> Table:
    """Return a table with one row for each stage; ``now`` in seconds since the epoch."""
    table = Table("stage", "job", "state", "nodes", "what")
    for stage in stages:
        times = stage_times(stage, now)
        style = _STYLES.get(stage.state, "red" if stage.final else "")
        table.add_row(
            stage.stage,
            stage.job_id or "-",
            (stage.state, style),
            stage.nodes or "-",
            f"{stage.sentence} ({times})" if times else stage.sentence,
        )
    return table


def engine_lines(engine: CachedEngine | None) -> list[str]:
    """Return what ``render`` and ``submit`` print about a run's engine; ``[]`` if the cache is not used."""
    if engine is None:
        return []
    if engine.state == "unknown":
        return [f"engine: the job will look in the cache ({engine.reason})"]
    if engine.state == "found":
        built = ""
        if (manifest := engine.entries[-1].manifest()) is not None:
            job = f" by job {manifest.job_id}" if manifest.job_id else ""
            took = format_duration(manifest.seconds)
            built = f", built {format_time(manifest.built_at)}{job} on {manifest.host} in {took}"
        return [f"engine: found in the cache ({engine.name}{built}), nothing to build"]
    steps = f"; steps already in the cache: {', '.join(engine.steps_found)}" if engine.steps_found else ""
    if engine.broken:
        return [f"engine: broken in the cache ({engine.broken[0]}), it is built again{steps}"]
    lines = [f"engine: not in the cache, it is built first ({engine.name}){steps}"]
    if engine.nearest is not None:
        lines += [f"  the nearest is {engine.nearest}:", *(f"    {part}" for part in engine.differences)]
    return lines


def use_sentence(status: RunStatus) -> str:
    """Return a run's GPU-hours, energy and power in words; empty if nothing is known."""
    use = status.use
    hours = [(stage.stage, stage.gpu_hours) for stage in status.stages if stage.gpu_hours]
    parts = []
    if use.gpu_hours:  # 0 without GPUs
        by_stage = ", ".join(f"{stage} {quantity(value)}" for stage, value in hours)
        parts.append(f"{quantity(use.gpu_hours)} GPU-hours{f' ({by_stage})' if by_stage else ''}")
    if use.energy_j is not None:
        parts.append(f"{quantity(use.energy_j / 3.6e6)} kWh measured by Slurm")
    if use.server_mean_w is not None:
        peak = quantity(use.server_peak_w)
        parts.append(f"the server's GPUs {quantity(use.server_mean_w)} W on average and {peak} W at most")
    return ", ".join(parts)


def client_lines(clients: Sequence[ProxyClient], now: float) -> list[str]:
    """Return a line for each client of the proxy: guests, and everybody else who has sent requests."""
    lines = []
    for client in clients:
        end = "" if client.expires_at is None else f" until {format_time(client.expires_at)}"
        key = "" if client.key_file is None else f"{'' if client.admitted else 'not '}admitted{end}, "
        last = "" if client.last_at is None else f", the last {_span(client.last_at, now)} ago"
        lines.append(f"{client.name}: {key}{client.requests} request{'s' * (client.requests != 1)}{last}")
    return lines


def stage_times(stage: StageStatus, now: float) -> str:
    """Return a stage's waiting or running time, and its expected start or latest end; empty after its end."""
    times = stage.times
    if stage.final:
        return ""
    if stage.state == "PENDING":
        waited = "" if times.submitted_at is None else f"waits for {_span(times.submitted_at, now)}"
        start = "" if times.expected_at is None else f"expected to start {format_time(times.expected_at)}"
        return ", ".join(filter(None, (waited, start)))
    elapsed = "" if times.started_at is None else f"for {_span(times.started_at, now)}"
    left = "" if times.ends_by is None else f"{_span(now, times.ends_by)} until its time limit"
    return ", ".join(filter(None, (elapsed, left)))


def _span(since: float, until: float) -> str:
    return clock_text(max(0.0, until - since))


LISTED = 8
"""Up to this many ranks are listed one by one. A larger server lists this many failed ranks one by one."""

_MOST_RANGES = 8


class _RankState(Protocol):
    """A rank with its state in a few words. The words of a failed rank begin with ``failed``."""

    @property
    def instance(self) -> int | None: ...
    @property
    def rank(self) -> int | None: ...
    @property
    def host(self) -> str | None: ...
    @property
    def state(self) -> str: ...


Ranked = TypeVar("Ranked", bound=_RankState)


def end_line(status: RunStatus) -> str:
    """Return the state of a run and its reason, without the cause, which is printed below."""
    cause = status.causes[0].sentence.rstrip(".") if status.causes else ""
    repeats = cause and status.sentence.casefold().endswith(f"; {cause.casefold()}")
    return f"{status.state.value}: {status.sentence[: -len(cause) - 2] if repeats else status.sentence}"


@dataclass(frozen=True)
class RankGroup(Generic[Ranked]):
    """Ranks in the same state, or one rank alone."""

    members: tuple[Ranked, ...]

    @property
    def state(self) -> str:
        """The state that all ranks of the group share."""
        return self.members[0].state

    @property
    def ranks(self) -> str:
        """The rank numbers, e.g. ``0-4,6-1023``; a group of several instances has these ranks in each."""
        return number_ranges(rank.rank for rank in self.members if rank.rank is not None)

    @property
    def instances(self) -> str:
        """The instance numbers, e.g. ``0-63``; empty if the run has a single instance."""
        return number_ranges(rank.instance for rank in self.members if rank.instance is not None)

    @property
    def host(self) -> str | None:
        """The host's name, or the number of hosts; ``None`` if no host is known."""
        hosts = {rank.host for rank in self.members if rank.host is not None}
        return f"{len(hosts)} hosts" if len(hosts) > 1 else next(iter(hosts), None)

    @property
    def name(self) -> str:
        """The group in words, e.g. ``rank 5`` or ``instances 0-63 ranks 0-1``."""
        kinds = (("instance", self.instances), ("rank", self.ranks))
        return " ".join(f"{kind}{'' if text.isdigit() else 's'} {text}" for kind, text in kinds if text)


def grouped(items: Sequence[Ranked]) -> list[RankGroup[Ranked]]:
    """Group ranks that are in the same state.

    Up to ``LISTED`` ranks stand alone. Of more ranks, only the first ``LISTED`` failed ranks stand alone.
    Instances are merged into one group if the same rank numbers of each are in the same state.
    """
    if len(items) <= LISTED:
        return [RankGroup((rank,)) for rank in items]
    alone = [rank for rank in items if rank.state.startswith("failed")][:LISTED]
    named = set(map(id, alone))
    by_instance: dict[tuple[int | None, str], list[Ranked]] = {}
    for rank in items:
        if id(rank) not in named:
            by_instance.setdefault((rank.instance, rank.state), []).append(rank)
    alike: dict[tuple[tuple[int | None, ...], str], list[Ranked]] = {}
    for (_, state), members in by_instance.items():
        alike.setdefault((tuple(rank.rank for rank in members), state), []).extend(members)
    groups = [RankGroup((rank,)) for rank in alone]
    groups += [RankGroup(tuple(members)) for members in alike.values()]
    return sorted(groups, key=lambda group: (group.members[0].instance or 0, group.members[0].rank or 0))


def number_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges, ``0-4,6-1023``; many ranges are cut, with the count of all numbers."""
    ordered = sorted(set(numbers))
    ranges: list[list[int]] = []
    for number in ordered:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    if len(texts) > _MOST_RANGES:
        return f"{','.join(texts[:_MOST_RANGES])},... ({len(ordered)} in all)"
    return ",".join(texts)
