"""Ranks in words: of a large server those in the same state together, the failed ones by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

LISTED = 8
"""So many ranks are listed one by one, and so many failed ones of a larger server."""

_MOST_RANGES = 8


class OfRank(Protocol):
    """What is known about one rank."""

    @property
    def instance(self) -> int | None:
        """Number of its instance; ``None`` where there is only one."""

    @property
    def rank(self) -> int | None:
        """Its number within the instance."""

    @property
    def host(self) -> str | None:
        """Where it runs; ``None``: not known."""

    @property
    def state(self) -> str:
        """Its state in a few words; it begins with ``failed`` if the rank failed."""


Ranked = TypeVar("Ranked", bound=OfRank)


@dataclass(frozen=True)
class RankGroup(Generic[Ranked]):
    """Ranks in the same state, or one rank alone."""

    members: tuple[Ranked, ...]

    @property
    def state(self) -> str:
        """The state of each of them."""
        return self.members[0].state

    @property
    def ranks(self) -> str:
        """Their numbers, as ``0-4,6-1023``; of several instances those of each."""
        return number_ranges(it.rank for it in self.members if it.rank is not None)

    @property
    def instances(self) -> str:
        """The numbers of their instances; empty where there is only one."""
        return number_ranges(it.instance for it in self.members if it.instance is not None)

    @property
    def host(self) -> str | None:
        """Their host, or how many there are; ``None`` if none is known."""
        hosts = {it.host for it in self.members if it.host is not None}
        return f"{len(hosts)} hosts" if len(hosts) > 1 else next(iter(hosts), None)

    @property
    def name(self) -> str:
        """``rank 5``, ``instances 0-63 ranks 0-1``."""
        kinds = (("instance", self.instances), ("rank", self.ranks))
        return " ".join(f"{kind}{'' if text.isdigit() else 's'} {text}" for kind, text in kinds if text)


def grouped(items: Sequence[Ranked]) -> list[RankGroup[Ranked]]:
    """Return few ranks one by one, else those in the same state together.

    Of more than a few failed ranks the first are alone. Instances whose same
    ranks are in the same state are one group.
    """
    if len(items) <= LISTED:
        return [RankGroup((it,)) for it in items]
    alone = [it for it in items if it.state.startswith("failed")][:LISTED]
    named = set(map(id, alone))
    of_instance: dict[tuple[int | None, str], list[Ranked]] = {}
    for it in items:
        if id(it) not in named:
            of_instance.setdefault((it.instance, it.state), []).append(it)
    alike: dict[tuple[tuple[int | None, ...], str], list[Ranked]] = {}
    for (_, state), members in of_instance.items():
        alike.setdefault((tuple(it.rank for it in members), state), []).extend(members)
    groups = [RankGroup((it,)) for it in alone] + [RankGroup(tuple(members)) for members in alike.values()]
    return sorted(groups, key=lambda group: (group.members[0].instance or 0, group.members[0].rank or 0))


def number_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges, ``0-4,6-1023``; of many ranges the first ones and the count of all."""
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
