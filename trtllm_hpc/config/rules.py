"""Rules of job files and cluster profiles: they judge valid values and yield diagnostics.

A rule about the presence of keys is an :class:`Excludes` or :class:`Requires`; any other rule is a generator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trtllm_hpc.config.diagnostics import Diagnostics, in_cluster, in_job
from trtllm_hpc.config.types import Section

Rule = Callable[[Any], Diagnostics]
"""A callable that judges a job file, a profile, or both (``JobFacts``)."""
_PROFILE = "cluster."


@dataclass(frozen=True)
class Excludes:
    """Refuse keys if one of other keys is set.

    Keys are dotted, and keys of the profile begin with ``cluster.``. ``key=value`` means the key with this
    value only, ``key!=value`` with any other value.
    """

    keys: str
    """Keys to refuse if set, separated by spaces."""
    others: str
    """Keys of which one must be set, separated by spaces. Empty: refuse ``keys`` in any case."""
    why: str
    """Message with the placeholders ``{key}``, ``{value}``, ``{job...}`` and ``{cluster...}``."""
    fix: str
    """Hint with the same placeholders."""
    code: str = "conflict"
    at: str = ""
    """Key that the diagnostic names instead of the refused one."""

    def __call__(self, subject: Any) -> Diagnostics:
        """Yield a diagnostic for each key that must not be set."""
        for key in self.keys.split():
            if not (_holds(subject, key) and self._refuses(subject)):
                continue
            name = key.partition("=")[0].removesuffix("!")
            value, field = _value(subject, name), self.at or name
            facts = {file: getattr(subject, file, subject) for file in ("job", "cluster")}
            facts |= {"key": name.rpartition(".")[2], "value": value}
            message, fix = (template.format(**facts) for template in (self.why, self.fix))
            in_file = in_cluster if field.startswith(_PROFILE) else in_job
            shown = None if self.at or isinstance(value, Section) else value
            yield in_file(self.code, field.removeprefix(_PROFILE), message, fix, shown)

    def _refuses(self, subject: Any) -> bool:
        return not self.others or any(_holds(subject, other) for other in self.others.split())


@dataclass(frozen=True)
class Requires(Excludes):
    """Refuse keys unless one of the other keys is set."""

    def _refuses(self, subject: Any) -> bool:
        return not super()._refuses(subject)


def _value(subject: Any, key: str) -> Any:
    """Return a key's value; ``None`` if its section is not set."""
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
