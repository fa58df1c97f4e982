"""Guests, who have further keys to a run's proxy, and how often everybody has asked.

``endpoint --invite`` and ``--revoke`` write files of the run folder, which the run's supervisor reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runtime.records import JsonRecord, known_fields

OWNER, ANYBODY = "owner", "anybody"
"""In place of a guest's name: who has the run's own key, and whoever asks a server without keys."""

IDLE = "idle"
"""Who requests the stop of a server that nobody asks, and the event that announces it."""


@dataclass(frozen=True)
class Guest:
    """A colleague who may ask the server of a run."""

    name: str
    invited_at: float
    """Seconds since the epoch."""
    expires_at: float | None = None
    """When the proxy begins to refuse the key; ``None``: the key is good until it is revoked."""


@dataclass(frozen=True)
class Visits(JsonRecord):
    """Who may ask and who has asked, as last recorded inside the job."""

    admitted: list[str] = field(default_factory=list)
    """The guests whom the proxy lets in."""
    asked: dict[str, list[float]] = field(default_factory=dict)
    """By name: the number of requests, and the time of the last one in seconds since the epoch."""


def read_guests(paths: RunPaths) -> list[Guest]:
    """Return the guests of a run; raises OSError or ValueError if their file cannot be read."""
    return [Guest(**known_fields(Guest, guest)) for guest in read_json(paths.guests) or ()]


def guest_keys(paths: RunPaths, now: float) -> dict[str, str]:
    """Return the keys that are good, each with the guest's name; raises as :func:`read_guests`."""
    good = [guest.name for guest in read_guests(paths) if guest.expires_at is None or now < guest.expires_at]
    return {paths.guest_key(name).read_text(encoding="ascii").strip(): name for name in good}
