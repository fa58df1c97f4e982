"""The status of a run as text: stages, engine, resource use, guests and ranks."""

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
    """Return a table with a row for each stage; ``now`` is a Unix time."""
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


def engine_lines(found: CachedEngine | None) -> list[str]:
    """Return lines about the search in the engine cache; empty for a run that needs no cached engine."""
    if found is None:
        return []
    if found.state == "unknown":
        return [f"engine: the job will look in the cache ({found.reason})"]
    if found.state == "found":
        built = ""
        if (manifest := found.entries[-1].manifest()) is not None:
            job = f" by job {manifest.job_id}" if manifest.job_id else ""
            took = format_duration(manifest.seconds)
            built = f", built {format_time(manifest.built_at)}{job} on {manifest.host} in {took}"
        return [f"engine: found in the cache ({found.name}{built}), nothing to build"]
    rest = f"; of its steps, {', '.join(found.steps_found)} is there" if found.steps_found else ""
    if found.broken:
        return [f"engine: broken in the cache ({found.broken[0]}), it is built again{rest}"]
    lines = [f"engine: not in the cache, it is built first ({found.name}){rest}"]
    if found.nearest is not None:
        lines += [f"  the nearest is {found.nearest}:", *(f"    {part}" for part in found.differences)]
    return lines


def use_sentence(status: RunStatus) -> str:
    """Return words for the resources that a run has used; empty if they are unknown."""
    use = status.use
    hours = [(stage.stage, stage.gpu_hours) for stage in status.stages if stage.gpu_hours is not None]
    parts = []
    if use.gpu_hours is not None:
        by_stage = ", ".join(f"{stage} {quantity(value)}" for stage, value in hours)
        parts.append(f"{quantity(use.gpu_hours)} GPU-hours{f' ({by_stage})' if by_stage else ''}")
    if use.energy_j is not None:
        parts.append(f"{quantity(use.energy_j / 3.6e6)} kWh by Slurm")
    if use.server_mean_w is not None:
        peak = quantity(use.server_peak_w)
        parts.append(f"{quantity(use.server_mean_w)} W on average and {peak} W at most by the server's GPUs")
    return ", ".join(parts)


def client_lines(clients: Sequence[ProxyClient], now: float) -> list[str]:
    """Return a line for each guest and each other user of the server."""
    lines = []
    for guest in clients:
        end = "" if guest.expires_at is None else f" until {format_time(guest.expires_at)}"
        key = "" if guest.key_file is None else f"{'' if guest.admitted else 'not '}admitted{end}, "
        last = "" if guest.last_at is None else f", the last {_span(guest.last_at, now)} ago"
        lines.append(f"{guest.name}: {key}{guest.requests} request{'s' * (guest.requests != 1)}{last}")
    return lines


def stage_times(stage: StageStatus, now: float) -> str:
    """Return words for a stage's elapsed and expected times; empty once the stage has ended."""
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
"""Most ranks with separate rows; of a larger server, most failed ranks with separate rows."""

_MOST_RANGES = 8


class _OfRank(Protocol):
    """A rank; the state of a failed rank begins with ``failed``."""

    @property
    def instance(self) -> int | None: ...
    @property
    def rank(self) -> int | None: ...
    @property
    def host(self) -> str | None: ...
    @property
    def state(self) -> str: ...


Ranked = TypeVar("Ranked", bound=_OfRank)


def end_line(status: RunStatus) -> str:
    """Return the state of a run and its reason, without the cause, which is printed below."""
    cause = status.causes[0].sentence.rstrip(".") if status.causes else ""
    again = cause and status.sentence.casefold().endswith(f"; {cause.casefold()}")
    return f"{status.state.value}: {status.sentence[: -len(cause) - 2] if again else status.sentence}"


@dataclass(frozen=True)
class RankGroup(Generic[Ranked]):
    """Ranks in the same state, or a single rank."""

    members: tuple[Ranked, ...]

    @property
    def state(self) -> str:
        """State of the ranks."""
        return self.members[0].state

    @property
    def ranks(self) -> str:
        """Numbers of the ranks, as ``0-4,6-1023``; with several instances, within each."""
        return number_ranges(rank.rank for rank in self.members if rank.rank is not None)

    @property
    def instances(self) -> str:
        """Numbers of the instances; empty if there is only one."""
        return number_ranges(rank.instance for rank in self.members if rank.instance is not None)

    @property
    def host(self) -> str | None:
        """Host of the ranks, or the number of hosts; ``None`` if unknown."""
        hosts = {rank.host for rank in self.members if rank.host is not None}
        return f"{len(hosts)} hosts" if len(hosts) > 1 else next(iter(hosts), None)

    @property
    def name(self) -> str:
        """Name of the group, e.g. ``rank 5`` or ``instances 0-63 ranks 0-1``."""
        kinds = (("instance", self.instances), ("rank", self.ranks))
        return " ".join(f"{kind}{'' if text.isdigit() else 's'} {text}" for kind, text in kinds if text)


def grouped(items: Sequence[Ranked]) -> list[RankGroup[Ranked]]:
    """Return few ranks separately, but many ranks grouped by state.

    The first failed ranks are separate in any case. Instances whose ranks have the same states form one
    group.
    """
    if len(items) <= LISTED:
        return [RankGroup((rank,)) for rank in items]
    alone = [rank for rank in items if rank.state.startswith("failed")][:LISTED]
    named = set(map(id, alone))
    of_instance: dict[tuple[int | None, str], list[Ranked]] = {}
    for rank in items:
        if id(rank) not in named:
            of_instance.setdefault((rank.instance, rank.state), []).append(rank)
    alike: dict[tuple[tuple[int | None, ...], str], list[Ranked]] = {}
    for (_, state), members in of_instance.items():
        alike.setdefault((tuple(rank.rank for rank in members), state), []).extend(members)
    groups = [RankGroup((rank,)) for rank in alone]
    groups += [RankGroup(tuple(members)) for members in alike.values()]
    return sorted(groups, key=lambda group: (group.members[0].instance or 0, group.members[0].rank or 0))


def number_ranges(numbers: Iterable[int]) -> str:
    """Format numbers as ranges, ``0-4,6-1023``; of many ranges, the first ones and the count of numbers."""
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
