"""The types of the files between the job and its readers: endpoint, rank records, stop requests, events.

Writers run inside the job; readers are the command line and the companion. Both use these types.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.paths import RunPaths, read_json, write_json

if TYPE_CHECKING:
    import ssl

TOKEN_VARIABLE = "TRTLLM_HPC_SUBMISSION"
"""Environment variable with the token of the job's submission; unset in scripts submitted by hand."""

Record = TypeVar("Record", bound="JsonRecord")


class JsonRecord:
    """Reads and writes a dataclass as JSON."""

    def write(self, path: Path) -> None:
        """Write the record atomically."""
        write_json(path, asdict(self))  # type: ignore[call-overload]

    @classmethod
    def read(cls: type[Record], path: Path) -> Record | None:
        """Return the record at ``path``; ``None`` if it is missing or damaged.

        Unknown keys are ignored, because a newer version may have written the file.
        """
        try:
            return cls(**known_fields(cls, read_json(path)))
        except (ValueError, OSError, AttributeError, TypeError):
            return None


def known_fields(kind: type, raw: Any) -> dict[str, Any]:
    """Return the items of a JSON object that are fields of the dataclass ``kind``."""
    names = {item.name for item in fields(kind)}
    return {name: value for name, value in raw.items() if name in names}


INSTANCE_HEADER = "x-trtllm-hpc-instance"
"""Request header, over HTTP or gRPC, with the number (from 0) of the instance that should get the request. If
that instance is not ready, the proxy chooses another."""

SESSION_HEADER = "x-session-id"
"""Request header, over HTTP or gRPC, with the name of the conversation, for ``serve.routing``."""

RELAY_VARIABLE = "TRTLLM_HPC_RELAYS"
"""Environment variable of a gateway: the proxy has already counted the requests that it forwards."""
RELAY_HEADER = "x-trtllm-hpc-relayed"
"""Header of requests that a gateway forwards."""


@dataclass(frozen=True)
class Endpoint(JsonRecord):
    """Address, models and access of a ready server."""

    job_id: str
    """Slurm's ID of the server's job."""
    host: str
    """Host name of rank 0, as the node reports it."""
    address: str
    """IP address of that host, for readers that cannot resolve its name."""
    http_port: int
    """Port of Triton's HTTP protocol; 0: not served."""
    grpc_port: int
    """Port of Triton's gRPC protocol; 0: not served."""
    metrics_port: int
    """Port of Triton's metrics; 0: not served."""
    models: list[str]
    """Models that were READY when the endpoint was published."""
    ready_at: float
    """Time at which the server became ready, in seconds since the epoch."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Duration of each phase from the job's first line to ready, in seconds."""
    key_file: str | None = None
    """File with the key that the proxy requires; ``None``: everybody may call the server."""
    certificate_file: str | None = None
    """File with the proxy's certificate; ``None``: the proxy does not encrypt."""
    fingerprint: str | None = None
    """SHA-256 fingerprint of the certificate."""
    instances: int = 1
    """Number of servers behind the proxy."""
    openai_url: str | None = None
    """URL of OpenAI's protocol, ending with ``/v1``; ``None``: the server does not speak it."""

    @property
    def is_triton(self) -> bool:
        """Whether the server speaks Triton's protocols."""
        return self.http_port != 0 or self.grpc_port != 0

    @property
    def authorization(self) -> dict[str, str]:
        """The headers that every call needs; raises RequestFailed if this user cannot read the key."""
        relayed = {RELAY_HEADER: "1"} if RELAY_VARIABLE in os.environ else {}
        if self.key_file is None:
            return relayed
        try:
            key = Path(self.key_file).read_text(encoding="ascii").strip()
            why = "" if key else "is empty"
        except (OSError, UnicodeDecodeError) as error:
            why = f"cannot be read: {getattr(error, 'strerror', None) or 'it does not contain a key'}"
        if why:
            sentence = f"The server at {self.place} asks for a key, and {self.key_file} {why}."
            raise RequestFailed(sentence, hint="ask the owner of the run for the key")
        return {"authorization": f"Bearer {key}", **relayed}

    @property
    def scheme(self) -> str:
        """``https`` if the proxy encrypts, else ``http``."""
        return "http" if self.certificate_file is None else "https"

    def tls(self, *protocols: str) -> ssl.SSLContext | None:
        """Return a context that trusts only the proxy's certificate; ``None`` if the proxy does not encrypt.

        Args:
            protocols: protocols to negotiate by ALPN, e.g. ``h2``.

        Raises:
            RequestFailed: the certificate cannot be read.
        """
        if self.certificate_file is None:
            return None
        import ssl  # imported here because it takes 5 ms

        try:
            context = ssl.create_default_context(cafile=self.certificate_file)
        except OSError as error:
            sentence = f"The certificate {self.certificate_file} cannot be read: {error.strerror or error}."
            raise RequestFailed(sentence) from None
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context

    @property
    def place(self) -> str:
        """The server's address for messages: ``address:port`` of Triton's HTTP endpoint, or OpenAI's URL."""
        return self.http if self.is_triton or self.openai_url is None else self.openai_url

    @property
    def places(self) -> str:
        """All addresses of the server, for a person."""
        triton = f"{self.scheme} {self.http}, grpc {self.grpc}" if self.is_triton else None
        openai = f"OpenAI {self.openai_url}" if self.openai_url is not None else None
        return ", ".join(filter(None, (triton, openai)))

    @property
    def http(self) -> str:
        """``address:port`` of the HTTP endpoint."""
        return f"{self.address}:{self.http_port}"

    @property
    def grpc(self) -> str:
        """``address:port`` of the gRPC endpoint."""
        return f"{self.address}:{self.grpc_port}"

    @property
    def openai_root(self) -> str:
        """URL of an OpenAI server without ``/v1``, e.g. for ``/health``; raises RequestFailed for Triton."""
        if self.openai_url is None:
            raise RequestFailed(f"The server at {self.http} does not speak OpenAI's protocol.")
        return self.openai_url.removesuffix("/v1")

    @property
    def metrics(self) -> str:
        """URL of the metrics page; behind a proxy, that of instance 0."""
        if not self.is_triton and self.openai_url is not None:
            return f"{self.openai_root}/metrics"
        return f"{self.scheme}://{self.address}:{self.metrics_port}/metrics"


@dataclass(frozen=True)
class RankRecord(JsonRecord):
    """One rank of a step: where it ran and how it ended.

    If ``ended_at`` is missing after the job's end, the rank was killed before it could record its end.
    """

    step: str
    rank: int
    world_size: int
    job_id: str
    host: str
    pid: int
    started_at: float
    ended_at: float | None = None
    exit_code: int | None = None
    """Exit code of the server process; negative for a signal, as in ``subprocess``."""
    task_exit_code: int | None = None
    """Exit code of the rank's task, which shows what failed, even if a signal ended the server."""
    stopped_by: str | None = None
    """Signal or program that stopped this rank (``companion``, ``SIGTERM``...); ``None`` if none did."""
    reason: str | None = None
    """Why the rank ended, in one sentence, if it knows."""
    blames: int | None = None
    """The rank at fault (silent, stopped or failed) because of which this rank ended its server; it may be
    this rank itself. ``reason`` names it."""
    details: dict[str, Any] = field(default_factory=dict)
    """Findings of the preflight: GPU IDs, /dev/shm, MPI library..."""
    gpus: list[dict[str, Any]] = field(default_factory=list)
    """The last reading of each GPU, as :mod:`trtllm_hpc.runtime.gpus` writes it; updated once a minute."""

    @classmethod
    def begun(cls, step: str, rank: int, world_size: int) -> RankRecord:
        """Return the record of a rank that begins now, in this process."""
        job_id = os.environ.get("TRTLLM_HPC_JOB_ID", "")
        return cls(step, rank, world_size, job_id, socket.gethostname(), os.getpid(), time.time())


def rank_records(paths: RunPaths, step: str) -> list[RankRecord]:
    """Return the records of a step's ranks in their order; empty while the folder cannot be read."""
    try:
        files = [*paths.ranks.glob(f"{step}_*.json")]
    except OSError:
        return []
    records = map(RankRecord.read, files)
    return sorted((record for record in records if record is not None), key=lambda record: record.rank)


@dataclass(frozen=True)
class StopRequest(JsonRecord):
    """A request to stop the server."""

    by: str
    """Who requests the stop, e.g. ``cancel`` or ``companion``."""
    reason: str
    requested_at: float
    """Seconds since the epoch."""
    token: str | None = None
    """Token of the submission that the request comes from; ``None`` for scripts run by hand."""


@dataclass(frozen=True)
class Event:
    """One line of a stage's event file."""

    time: float
    stage: str
    name: str
    data: dict[str, Any] = field(default_factory=dict)


def add_event(paths: RunPaths, stage: str, name: str, **data: Any) -> None:
    """Append one event to the stage's file, in a single write."""
    line = json.dumps({"time": time.time(), "stage": stage, "name": name, "data": data}, ensure_ascii=False)
    paths.events.mkdir(exist_ok=True)
    handle = os.open(paths.stage_events(stage), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, line.encode() + b"\n")
    finally:
        os.close(handle)


def try_event(paths: RunPaths, stage: str, name: str, **data: Any) -> None:
    """Append one event if possible: a full disk must not change what the caller does next."""
    with suppress(OSError):
        add_event(paths, stage, name, **data)


def read_events(paths: RunPaths, *stages: str) -> list[Event]:
    """Return the events of the given stages (default: all), sorted by time; skip incomplete lines."""
    files = [paths.stage_events(stage) for stage in stages] or sorted(paths.events.glob("*.jsonl"))
    events = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue
        # Not splitlines(), which also splits at U+2028 and similar characters; JSON does not escape these.
        for line in text.split("\n"):
            try:
                raw = json.loads(line)
                events.append(Event(raw["time"], raw["stage"], raw["name"], raw.get("data", {})))
            except (ValueError, KeyError, TypeError):
                continue
    return sorted(events, key=lambda event: event.time)


def of_last_job(events: Sequence[Event]) -> list[Event]:
    """Return a stage's events since the last job began it; all events if no job has begun it."""
    begun = [number for number, event in enumerate(events) if event.name == "stage_begin"]
    return list(events[begun[-1] :] if begun else events)


# Guests, who have keys of their own to a run's proxy, and the request counts of all clients -----
# ``endpoint --invite`` and ``--revoke`` write files in the run folder, which the run's supervisor reads.

OWNER, ANYBODY = "owner", "anybody"
"""Used in place of a guest's name: clients with the run's own key, and all clients of a server without
keys."""

IDLE = "idle"
"""Requester of the stop of an idle server, and name of the event that announces the stop."""


@dataclass(frozen=True)
class Guest:
    """A colleague who may use the server of a run."""

    name: str
    invited_at: float
    """Seconds since the epoch."""
    expires_at: float | None = None
    """Time after which the proxy refuses the key, in seconds since the epoch; ``None``: until revoked."""


@dataclass(frozen=True)
class Visits(JsonRecord):
    """The admitted guests and the requests of all clients, as last recorded inside the job."""

    admitted: list[str] = field(default_factory=list)
    """Names of the guests whom the proxy admits."""
    asked: dict[str, list[float]] = field(default_factory=dict)
    """Number of requests and time of the last request (seconds since the epoch), by client name."""


def read_guests(paths: RunPaths) -> list[Guest]:
    """Return the guests of a run; raise OSError or ValueError if their file cannot be read."""
    return [Guest(**known_fields(Guest, guest)) for guest in read_json(paths.guests) or ()]


def guest_keys(paths: RunPaths, now: float) -> dict[str, str]:
    """Return the guest's name for each valid key; raises like :func:`read_guests`."""
    good = [guest.name for guest in read_guests(paths) if guest.expires_at is None or now < guest.expires_at]
    return {paths.guest_key(name).read_text(encoding="ascii").strip(): name for name in good}
