"""Faults from which a living run recovers: injected one after the other, each undone once it is named.

They need only one run: one rank with a door that has a certificate, while the companion measures.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.faults.fault import CANCELLED, HANG_S, Fault
from benchmarks.faults.files import half
from benchmarks.faults.kill import Injection
from benchmarks.faults.scene import Scene
from tests.slurm.conftest import USER

STATUS_S = 3.0
"""Bound for ``status``, whatever the logs hold."""
EXPLAIN_S = 10.0
_RUNS = r"^stage serve runs"


def moved(name: str) -> Injection:
    """A file or folder of the run folder is moved away."""

    @contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        file = scene.paths.folder / name
        away = file.rename(scene.person.folder / f"away-{file.name}")
        yield
        if file.is_dir():  # the jobs may have made the folder anew
            shutil.copytree(file, away, dirs_exist_ok=True)
            shutil.rmtree(file)
        away.rename(file)
        shutil.chown(file, USER.pw_uid, USER.pw_gid)

    return inject


def changed(name: str, change: Callable[[bytes], bytes]) -> Injection:
    """A file of the run folder has another content, in place."""

    @contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        file = scene.paths.folder / name
        before = file.read_bytes()
        file.write_bytes(change(before))
        yield
        file.write_bytes(before)

    return inject


def empty(_: bytes) -> bytes:
    """Return nothing."""
    return b""


def a_list(_: bytes) -> bytes:
    """Return what is JSON, and nothing that is expected."""
    return b"[1, 2]\n"


def noise(content: bytes) -> bytes:
    """Return the content with lines of no meaning after it."""
    return content + os.urandom(5000) + b'\n{"event": 7}\n[]\nnull\n'


def field(name: str, value: Any) -> Callable[[bytes], bytes]:
    """Return what gives one field of a JSON object another value."""
    return lambda content: json.dumps({**json.loads(content), name: value}).encode()


def field_part(name: str, change: Callable[[str], str]) -> Callable[[bytes], bytes]:
    """Return what changes the text of one field."""
    return lambda content: field(name, change(json.loads(content)[name]))(content)


def other_key(content: bytes) -> bytes:
    """Return another key of the same length."""
    return b"x" * len(content.strip()) + b"\n"


def long_log(line: bytes, mib: int) -> Injection:
    """The server's log grows by this many MiB."""

    @contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        log = scene.paths.rank_log("serve", 0)
        size = log.stat().st_size
        block = (line * (2**20 // len(line) + 1))[: 2**20]
        with log.open("ab") as file:
            for _ in range(mib):
                file.write(block)
        yield
        os.truncate(log, size)

    return inject


def answers(**programs: str) -> Injection:
    """Slurm's commands on the login node are other programs: bash scripts."""

    @contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        folder = scene.person.folder / "programs"
        folder.mkdir()
        folder.chmod(0o755)
        for name, script in programs.items():
            (folder / name).write_text(f"#!/bin/bash\n{script}\n")
            (folder / name).chmod(0o755)
        scene.person.environment["PATH"] = f"{folder}:{scene.person.bin}:{os.environ['PATH']}"
        yield
        del scene.person.environment["PATH"]
        shutil.rmtree(folder)

    return inject


@contextmanager
def folder_closed(scene: Scene) -> Iterator[None]:
    """Nobody may look into the run folder, not even its owner."""
    scene.paths.folder.chmod(0)
    yield
    scene.paths.folder.chmod(0o700)


@contextmanager
def key_closed(scene: Scene) -> Iterator[None]:
    """The owner may not read the key."""
    scene.paths.key.chmod(0)
    yield
    scene.paths.key.chmod(0o600)


def _living(name: str, title: str, inject: Injection, expected: str, **more: Any) -> Fault:
    return Fault(name, title, inject, expected, CANCELLED, ranks=1, living=True, **more)


def _client(name: str, title: str, inject: Injection, expected: str) -> Fault:
    return _living(name, f"{title}, and `client` asks", inject, expected, asks="client")


_CUT: dict[str, Callable[[bytes], bytes]] = {"cut": half, "list": a_list}
_BINARY = bytes(range(256))
_ERROR = b"E0101 00:00:00.000000 1 server.cc:1] error: request 4711 failed: an error occurred\n"
_BOTH = ("squeue", "sacct", "scontrol")

LIVING = (
    *(
        _living(
            f"{name.partition('.')[0]}-moved",
            f"`{name}` is moved out of the run folder",
            moved(name),
            rf"lacks [^;]*{name}",
        )
        for name in ("logs", "events", "ranks", "scripts", "runtime.pyz", "jobs.json")
    ),
    *(
        _living(
            f"{name}-{how}",
            f"`{name}.json` is {'cut in half' if how == 'cut' else 'a list'}",
            changed(f"{name}.json", change),
            rf"{name}\.json",
        )
        for name in ("plan", "jobs", "instances", "endpoint")
        for how, change in _CUT.items()
    ),
    *(
        _living(f"{name}-{how}", f"{what}; `status` still knows", changed(file, change), _RUNS)
        for name, how, what, file, change in (
            (
                "events",
                "noise",
                "binary and odd lines follow in the server's events",
                "events/serve.jsonl",
                noise,
            ),
            ("events", "empty", "the server's events are emptied", "events/serve.jsonl", empty),
            ("record", "cut", "the record of rank 0 is cut in half", "ranks/serve_0.json", half),
            ("beat", "empty", "the heartbeat of rank 0 is emptied", "ranks/serve_0.alive", empty),
        )
    ),
    *(
        _client(f"endpoint-{name}", f"`endpoint.json` {what}", changed("endpoint.json", change), expected)
        for name, what, change, expected in (
            ("halved", "is cut in half", half, r"endpoint\.json.*(cut|JSON|damaged)"),
            ("emptied", "is empty", empty, r"endpoint\.json.*empty"),
            ("odd", "is a list", a_list, r"endpoint\.json.*(endpoint|list|damaged)"),
            (
                "port",
                "names another port",
                field("grpc_port", 9),
                r"(nothing|nobody|no server) listens|refused",
            ),
            ("host", "names an address of nobody", field("address", "192.0.2.1"), r"192\.0\.2\.1"),
        )
    ),
    *(
        _client(f"key-{name}", f"the key {what}", inject, expected)
        for name, what, inject, expected in (
            ("wrong", "is another", changed("key", other_key), r"\bkey\b"),
            ("empty", "is empty", changed("key", empty), r"\bkey\b.*empty|empty.*\bkey\b"),
            ("gone", "is moved away", moved("key"), r"\bkey\b"),
            (
                "closed",
                "cannot be read",
                key_closed,
                r"\bkey\b.*(permission|read)|(permission|read).*\bkey\b",
            ),
        )
    ),
    _client(
        "certificate-wrong",
        "the certificate is cut in half",
        changed("certificate.crt", half),
        r"certificate",
    ),
    _client("certificate-gone", "the certificate is moved away", moved("certificate.crt"), r"certificate"),
    _living(
        "slurm-empty",
        "`squeue`, `sacct` and `scontrol` print nothing, with exit code 0",
        answers(**dict.fromkeys(_BOTH, "exit 0")),
        _RUNS,
    ),
    _living(
        "slurm-garbage",
        "`squeue`, `sacct` and `scontrol` print garbage, with exit code 0",
        answers(**dict.fromkeys(_BOTH, "head -c 3000 /dev/urandom; echo; echo 'a|b|c'")),
        _RUNS + r"|(squeue|sacct).*(answer|print)",
    ),
    _living(
        "slurm-refuses",
        "`squeue`, `sacct` and `scontrol` fail with words of a site's own",
        answers(**dict.fromkeys(_BOTH, "echo 'site: log in again' >&2; exit 1")),
        _RUNS + r"|site: log in again",
    ),
    _living(
        "slurm-hangs",
        "`squeue` does not end",
        answers(squeue="exec sleep 300"),
        _RUNS + r"|squeue.*(answer|within|end|timed out)",
        bound_s=HANG_S,
    ),
    _living(
        "run-folder-closed",
        "the run folder may not be entered (`chmod 0`)",
        folder_closed,
        r"permission|cannot be (read|entered|opened)|may not",
    ),
    *(
        _living(
            f"{asks}-{name}",
            f"the server's log grows by {mib} MiB {what}, and `{asks}` is asked",
            long_log(line, mib),
            _RUNS if asks == "status" else r"^(?!.*Traceback)",
            bound_s=STATUS_S if asks == "status" else EXPLAIN_S,
            asks=asks,
            timed=True,
        )
        for asks, name, mib, what, line in (
            ("status", "binary", 200, "of binary data", _BINARY),
            ("status", "errors", 400, "of lines with 'error'", _ERROR),
            ("explain", "errors", 100, "of lines with 'error'", _ERROR),
        )
    ),
)
