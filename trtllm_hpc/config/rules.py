"""What rules of job files and cluster profiles are.

Where keys alone decide, a rule is a row: :class:`Excludes` or :class:`Requires`. Where code decides, it is a
generator of diagnostics. Both read valid values only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trtllm_hpc.config.diagnostics import Diagnostics, in_cluster, in_job
from trtllm_hpc.config.types import Section

Rule = Callable[[Any], Diagnostics]
"""Judges a job file, a profile, or both (``JobFacts``)."""
_PROFILE = "cluster."


@dataclass(frozen=True)
class Excludes:
    """Keys that cannot be set beside others.

    A key is dotted; those of the profile begin with ``cluster.``. ``key=value`` means the key with this value
    only, ``key!=value`` with any other.
    """

    keys: str
    """Each is refused, unless it is not set; separated by spaces."""
    others: str
    """Any of them; separated by spaces. Empty: the keys are refused whatever else is set."""
    why: str
    """The message, in which ``{key}``, ``{value}``, ``{job...}`` and ``{cluster...}`` stand for values."""
    fix: str
    code: str = "conflict"
    at: str = ""
    """The key to name in the place of the refused one."""

    def __call__(self, subject: Any) -> Diagnostics:
        """Yield a diagnostic for each key that is set and must not be."""
        for key in self.keys.split():
            if not (_holds(subject, key) and self._refuses(subject)):
                continue
            name = key.partition("=")[0].removesuffix("!")
            value, field = _value(subject, name), self.at or name
            facts = {it: getattr(subject, it, subject) for it in ("job", "cluster")}
            facts |= {"key": name.rpartition(".")[2], "value": value}
            message, fix = (it.format(**facts) for it in (self.why, self.fix))
            in_file = in_cluster if field.startswith(_PROFILE) else in_job
            shown = None if self.at or isinstance(value, Section) else value
            yield in_file(self.code, field.removeprefix(_PROFILE), message, fix, shown)

    def _refuses(self, subject: Any) -> bool:
        return not self.others or any(_holds(subject, other) for other in self.others.split())


@dataclass(frozen=True)
class Requires(Excludes):
    """Keys that have an effect only beside one of the others."""

    def _refuses(self, subject: Any) -> bool:
        return not super()._refuses(subject)


def _value(subject: Any, key: str) -> Any:
    """Return a key's value; ``None`` where a section above it is not set."""
    value = getattr(subject, "cluster" if key.startswith(_PROFILE) else "job", subject)
    for name in key.removeprefix(_PROFILE).split("."):
        value = None if value is None else getattr(value, name)
    return value


def _holds(subject: Any, condition: str) -> bool:
    key, equals, wanted = condition.partition("=")
    value = _value(subject, key.removesuffix("!"))
    if key.endswith("!"):
        return value is not None and str(value) != wanted
    return str(value) == wanted if equals else bool(value)
