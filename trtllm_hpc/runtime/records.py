"""The files that the job writes for its readers: endpoint, rank records, stop requests, events.

The writers run inside the job, the readers in the command line and in the companion. Both use these types.
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
"""Environment variable that names the submission a job belongs to; unset in scripts submitted by hand."""

Record = TypeVar("Record", bound="JsonRecord")


class JsonRecord:
    """Reads and writes a dataclass as JSON."""

    def write(self, path: Path) -> None:
        """Write the record atomically."""
        write_json(path, asdict(self))  # type: ignore[call-overload]

    @classmethod
    def read(cls: type[Record], path: Path) -> Record | None:
        """Return the record at ``path``; ``None`` if it is missing or damaged.

        Unknown keys are ignored: the writer may be newer.
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
"""Header of a request, over HTTP or gRPC, that the proxy is to pass on to one of its instances: its number,
from 0. If that instance is not ready, another one gets the request."""

SESSION_HEADER = "x-session-id"
"""Header of a request, over HTTP or gRPC, that names its conversation, for ``serve.routing``."""

RELAY_VARIABLE = "TRTLLM_HPC_RELAYS"
"""Environment variable of a gateway, whose requests the proxy has already counted."""
RELAY_HEADER = "x-trtllm-hpc-relayed"
"""Header of such requests."""


@dataclass(frozen=True)
class Endpoint(JsonRecord):
    """Where a ready server answers."""

    job_id: str
    host: str
    """Host name of rank 0, as the node reports it."""
    address: str
    """IP address of that host, for readers that cannot resolve its name."""
    http_port: int
    """Of Triton, as the next two; 0: there is none."""
    grpc_port: int
    metrics_port: int
    models: list[str]
    """Models that were READY when this was published."""
    ready_at: float
    """Seconds since the epoch."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Duration of each phase from the job's first line to ready, in seconds."""
    key_file: str | None = None
    """File with the key that the proxy asks for; ``None`` if everybody may call the server."""
    certificate_file: str | None = None
    """File with the certificate that the proxy shows; ``None`` if it does not encrypt."""
    fingerprint: str | None = None
    """Of that certificate, by SHA-256."""
    instances: int = 1
    """Servers behind the proxy."""
    openai_url: str | None = None
    """URL of OpenAI's protocol, which ends with ``/v1``; ``None`` if the server does not speak it."""

    @property
    def is_triton(self) -> bool:
        """Whether the server speaks Triton's protocols."""
        return self.http_port != 0 or self.grpc_port != 0

    @property
    def authorization(self) -> dict[str, str]:
        """The headers that every call needs; raises RequestFailed if the key is not ours."""
        relayed = {RELAY_HEADER: "1"} if RELAY_VARIABLE in os.environ else {}
        if self.key_file is None:
            return relayed
        try:
            key = Path(self.key_file).read_text(encoding="ascii").strip()
            why = "" if key else "is empty"
        except (OSError, UnicodeDecodeError) as error:
            why = f"cannot be read: {getattr(error, 'strerror', None) or 'it does not hold a key'}"
        if why:
            sentence = f"The server at {self.place} asks for a key, and {self.key_file} {why}."
            raise RequestFailed(sentence, hint="ask the owner of the run for the key")
        return {"authorization": f"Bearer {key}", **relayed}

    @property
    def scheme(self) -> str:
        """``https`` if the proxy encrypts, else ``http``."""
        return "http" if self.certificate_file is None else "https"

    def tls(self, *protocols: str) -> ssl.SSLContext | None:
        """Return what trusts the proxy's certificate and no other; ``None`` if the proxy does not encrypt.

        Args:
            protocols: to be agreed on by ALPN, e.g. ``h2``.

        Raises:
            RequestFailed: the certificate cannot be read.
        """
        if self.certificate_file is None:
            return None
        import ssl  # loading it takes 5 ms

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
        """The one place to name: ``address:port`` of Triton's HTTP endpoint, or the URL of OpenAI's."""
        return self.http if self.is_triton or self.openai_url is None else self.openai_url

    @property
    def places(self) -> str:
        """Where it listens, for a person."""
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
        """URL of an OpenAI server's own pages, such as ``/health``; raises RequestFailed for any other."""
        if self.openai_url is None:
            raise RequestFailed(f"The server at {self.http} does not speak OpenAI's protocol.")
        return self.openai_url.removesuffix("/v1")

    @property
    def metrics(self) -> str:
        """URL of the metrics page; behind a proxy, of instance 0."""
        if not self.is_triton and self.openai_url is not None:
            return f"{self.openai_root}/metrics"
        return f"{self.scheme}://{self.address}:{self.metrics_port}/metrics"


@dataclass(frozen=True)
class RankRecord(JsonRecord):
    """One rank of a step: where it ran and how it ended.

    A rank without ``ended_at`` after the job's end was killed before it could write.
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
    """Exit code of the rank's task, which says what failed; the server may have been ended by a signal."""
    stopped_by: str | None = None
    """What stopped this rank (``companion``, ``SIGTERM``...); ``None`` if it was not stopped."""
    reason: str | None = None
    """One sentence, when the rank knows why it ended."""
    blames: int | None = None
    """The rank because of which this one has ended its server, found silent or at fault; its own if no other
    one is. ``reason`` then names it."""
    details: dict[str, Any] = field(default_factory=dict)
    """What the preflight has found: GPU ids, /dev/shm, MPI library..."""
    gpus: list[dict[str, Any]] = field(default_factory=list)
    """The last reading of each of its GPUs, as :mod:`trtllm_hpc.runtime.gpus` writes it; once a minute."""

    @classmethod
    def begun(cls, step: str, rank: int, world_size: int) -> RankRecord:
        """Return the record of a rank that begins now, in this process."""
        job_id = os.environ.get("TRTLLM_HPC_JOB_ID", "")
        return cls(step, rank, world_size, job_id, socket.gethostname(), os.getpid(), time.time())


def rank_records(paths: RunPaths, step: str) -> list[RankRecord]:
    """Return the records of a step's ranks, in their order; none while their folder cannot be read."""
    try:
        files = [*paths.ranks.glob(f"{step}_*.json")]
    except OSError:
        return []
    found = map(RankRecord.read, files)
    return sorted((record for record in found if record is not None), key=lambda record: record.rank)


@dataclass(frozen=True)
class StopRequest(JsonRecord):
    """A request to stop the server."""

    by: str
    reason: str
    requested_at: float
    token: str | None = None
    """The submission that the request comes from; ``None`` for scripts run by hand."""


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
    """Append one event if that is possible: a full disk is no reason to end what serves, or to go on."""
    with suppress(OSError):
        add_event(paths, stage, name, **data)


def read_events(paths: RunPaths, *stages: str) -> list[Event]:
    """Return the events of the given stages (of all without any), sorted by time.

    An incomplete last line is left out.
    """
    files = [paths.stage_events(stage) for stage in stages] or sorted(paths.events.glob("*.jsonl"))
    events = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue
        # Not splitlines: JSON does not escape U+2028 and similar characters.
        for line in text.split("\n"):
            try:
                raw = json.loads(line)
                events.append(Event(raw["time"], raw["stage"], raw["name"], raw.get("data", {})))
            except (ValueError, KeyError, TypeError):
                continue
    return sorted(events, key=lambda event: event.time)


def of_last_job(events: Sequence[Event]) -> list[Event]:
    """Return a stage's events since a job last began it; all of them if none has begun it."""
    begun = [number for number, event in enumerate(events) if event.name == "stage_begin"]
    return list(events[begun[-1] :] if begun else events)


# Guests, who have further keys to a run's proxy, and how often everybody has asked -------------
# ``endpoint --invite`` and ``--revoke`` write files of the run folder, which the run's supervisor reads.

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
