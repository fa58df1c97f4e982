"""Guests of a run (colleagues with their own keys to its proxy), and the request counts of all clients."""

from __future__ import annotations

import fcntl
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from trtllm_hpc.errors import ConfigError, Diagnostic, NotReady
from trtllm_hpc.logs.reading import stat_of
from trtllm_hpc.paths import RunPaths, call_name, write_json
from trtllm_hpc.runtime.proxy import write_key
from trtllm_hpc.runtime.records import ANYBODY, OWNER, Guest, Visits, read_guests

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_CONFIRMED_S = 15.0
"""Seconds for the proxy to apply the file of guests, which the supervisor reads once a second."""


@dataclass(frozen=True)
class ProxyClient:
    """A client that has sent requests to a server, or a guest who may."""

    name: str
    """The guest's name, ``owner``, or ``anybody`` if the server asks for no key."""
    requests: int
    """Number of requests through the proxy that generate or infer."""
    last_at: float | None
    """Time of the last request, in seconds since the epoch."""
    key_file: str | None = None
    """File with a guest's key, which only the owner of the run can read; ``None``: not a guest any more."""
    expires_at: float | None = None
    """Time at which the key expires, in seconds since the epoch; ``None``: when it is revoked."""
    admitted: bool = False
    """Whether the proxy admits the guest now."""


def clients_of(paths: RunPaths) -> tuple[ProxyClient, ...]:
    """Return the guests of a run, and all other clients that have sent requests."""
    visits = Visits.read(paths.visits) or Visits()
    guests: dict[str, Guest] = {}
    with suppress(OSError, ValueError, TypeError):
        guests = {guest.name: guest for guest in read_guests(paths)}
    serves, clients = stat_of(paths.endpoint) is not None, []
    for name in dict.fromkeys([*visits.asked, *guests]):
        count, last_at = visits.asked.get(name, (0, None))
        guest, admitted = guests.get(name), serves and name in visits.admitted
        guest_fields = () if guest is None else (str(paths.guest_key(name)), guest.expires_at, admitted)
        clients.append(ProxyClient(name, int(count), last_at, *guest_fields))
    return tuple(clients)


def invite(paths: RunPaths, name: str, expires_s: float | None) -> None:
    """Make a key for a guest and, if the run serves, wait until its proxy accepts the key.

    Raises ConfigError for an invalid name, a guest with a key, or a run without keys; NotReady if the proxy
    does not confirm the key.
    """
    from trtllm_hpc.config.files import read_spec  # imported here because `status` does not need it

    serve = read_spec(paths.spec).serve
    if serve.proxy == "none":
        raise _refused(paths, "the run has no proxy that asks for a key: everybody may use this server")
    if not _NAME.fullmatch(name) or name in (OWNER, ANYBODY):
        hint = "letters, digits, '.', '_', '@' and '-', such as a user name"
        raise _refused(paths, f"{name!r} cannot be the name of a guest", hint)
    key, now = paths.guest_key(name), time.time()
    with _changing(paths) as guests:
        if name in guests and now < (guests[name].expires_at or now + 1):
            hint = f"trtllm-hpc endpoint {call_name(paths)} --revoke {name} --invite {name}, for another key"
            raise _refused(paths, f"{name} has a key already: {key}", hint)
        key.parent.mkdir(mode=0o700, exist_ok=True)
        key.unlink(missing_ok=True)
        write_key(key)
        guests[name] = Guest(name, now, None if expires_s is None else now + expires_s)
    _wait_for_proxy(paths, name, admitted=True)


def revoke(paths: RunPaths, name: str) -> None:
    """Revoke a guest's key and wait until the proxy refuses it; raises like :func:`invite`."""
    with _changing(paths) as guests:
        if guests.pop(name, None) is None:
            raise _refused(paths, f"{name!r} is not a guest; invited: {', '.join(guests) or 'nobody'}")
    paths.guest_key(name).unlink(missing_ok=True)
    _wait_for_proxy(paths, name, admitted=False)


@contextmanager
def _changing(paths: RunPaths) -> Iterator[dict[str, Guest]]:
    """Yield the guests by name and write the caller's changes; only one process at a time."""
    with (paths.folder / ".guests.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        guests = {guest.name: guest for guest in read_guests(paths)}
        yield guests
        write_json(paths.guests, [asdict(guest) for guest in guests.values()])


def _wait_for_proxy(paths: RunPaths, name: str, *, admitted: bool) -> None:
    deadline = time.monotonic() + _CONFIRMED_S
    while paths.endpoint.exists() and (name in (Visits.read(paths.visits) or Visits()).admitted) != admitted:
        if time.monotonic() > deadline:
            what = f"has not confirmed that it {'accepts' if admitted else 'refuses'} the key of {name}"
            hint = f"trtllm-hpc status {call_name(paths)}"
            raise NotReady(f"The proxy of run {paths.run_id} {what}.", hint=hint)
        time.sleep(0.2)


def _refused(paths: RunPaths, message: str, hint: str | None = None) -> ConfigError:
    return ConfigError([Diagnostic("guest", message, f"run {paths.run_id}", hint=hint)])
