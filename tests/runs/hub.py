"""A server on this machine that speaks a model hub's protocol, as ``huggingface_hub`` 1.33 uses it.

The metadata of a revision, the list of its files with sizes and hashes, ``HEAD`` with commit, size and hash,
small files behind a redirect on the hub, weights behind one to another host without the token, ranges, gated
and private models with the headers that name the reason; and faults of the network on demand.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_SecretOfTheTest"
LARGE = (".safetensors", ".bin", ".pth")
"""Names of the files that are kept by Git LFS."""


@dataclass
class Hub:
    """What the server has, and what it was asked for."""

    files: dict[str, bytes]
    gated: bool = False
    private: bool = False
    commits: dict[str, str] = field(default_factory=lambda: {"main": COMMIT, "v2": COMMIT[::-1]})
    cut: dict[str, int] = field(default_factory=dict)
    """Files whose next answer ends after so many bytes."""
    held: dict[str, threading.Event] = field(default_factory=dict)
    """Files whose answer stops after three quarters until the event."""
    wrong: set[str] = field(default_factory=set)
    """Files with another content than the metadata say."""
    ranges: list[tuple[str, str]] = field(default_factory=list)
    """Each answer with content: name and range."""
    asked: int = 0
    """How often the metadata were asked for."""
    reached: threading.Event = field(default_factory=threading.Event)
    """An answer is held."""
    leaked: bool = False
    """Whether the token was sent to the other host."""

    def digest(self, name: str) -> str:
        """The SHA-256 of a large file, Git's hash of a small one."""
        data = self.files[name]
        if name.endswith(LARGE):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()

    def metadata(self, commit: str) -> dict[str, Any]:
        files = []
        for name, data in self.files.items():
            size, digest = len(data), self.digest(name)
            lfs = {"sha256": digest, "size": size, "pointerSize": 134}
            blob = {"rfilename": name, "size": size, "blobId": digest[:40]}
            files.append({**blob, "lfs": lfs} if name.endswith(LARGE) else blob)
        return {"id": "org/tiny", "sha": commit, "siblings": files}

    def tree(self) -> list[dict[str, Any]]:
        files = []
        for name, data in self.files.items():
            size, digest = len(data), self.digest(name)
            lfs = {"oid": digest, "size": size, "pointerSize": 134}
            blob = {"type": "file", "path": name, "size": size, "oid": digest[:40]}
            files.append({**blob, "lfs": lfs} if name.endswith(LARGE) else blob)
        return files


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    port: int
    other_host: str

    def log_message(self, *_: object) -> None:
        pass

    def refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        has_token = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if path.startswith("/cdn/"):  # a signed address of another host: a token does not belong there
            self.hub.leaked |= "Authorization" in self.headers
            self.give(path.removeprefix("/cdn/"))
        elif not re.match(r"/(api/(resolve-cache/)?models/)?org/tiny/", path) or (
            self.hub.private and not has_token
        ):
            self.refuse(401, "RepoNotFound")
        elif found := re.fullmatch(r"/api/models/org/tiny/revision/(.+)", path):
            self.describe(found[1])
        elif re.fullmatch(r"/api/models/org/tiny/tree/[0-9a-f]{40}", path):
            self.answer(self.hub.tree())
        elif self.hub.gated and not has_token:
            self.refuse(403, "GatedRepo")
        elif found := re.fullmatch(r"/api/resolve-cache/models/org/tiny/[0-9a-f]{40}/(.+)", path):
            self.give(found[1])
        elif found := re.fullmatch(r"/org/tiny/resolve/([0-9a-f]{40})/(.+)", path):
            self.resolve(*found.groups())

    def describe(self, revision: str) -> None:
        self.hub.asked += 1
        commit = revision if revision in self.hub.commits.values() else self.hub.commits.get(revision)
        if commit is None:
            self.refuse(404, "RevisionNotFound")
        else:
            self.answer(self.hub.metadata(commit))

    def answer(self, record: object) -> None:
        text = json.dumps(record).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def resolve(self, commit: str, name: str) -> None:
        is_large = name.endswith(LARGE)
        self.send_response(302 if is_large else 307)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("X-Linked-Size", str(len(self.hub.files[name])))
        self.send_header("X-Linked-ETag", f'"{self.hub.digest(name)}"')
        here = f"/api/resolve-cache/models/org/tiny/{commit}/{name}"
        other = f"http://{self.other_host}:{self.port}/cdn/{name}"
        self.send_header("Location", other if is_large else here)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def give(self, name: str) -> None:
        hub = self.hub
        data = hub.files[name]
        asked = self.headers.get("Range", "")
        first = int(asked.removeprefix("bytes=").partition("-")[0] or 0)
        body = (data[::-1] if name in hub.wrong else data)[first:]
        self.send_response(206 if asked else 200)
        self.send_header("ETag", f'"{hub.digest(name)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(body)))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        hub.ranges.append((name, asked))
        cut = hub.cut.pop(name, None)
        if cut is not None:
            self.wfile.write(body[:cut])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif (held := hub.held.get(name)) is not None:
            most = len(body) * 3 // 4  # more than a client's block
            self.wfile.write(body[:most])
            self.wfile.flush()
            hub.reached.set()
            held.wait(30)
            self.wfile.write(body[most:])
        else:
            self.wfile.write(body)


class HubServer(ThreadingHTTPServer):
    """The server; its address is in ``url``."""

    daemon_threads = True

    def __init__(self, hub: Hub, address: str = "127.0.0.1") -> None:
        handler = type("Handler", (_Handler,), {"hub": hub})
        super().__init__((address, 0), handler)
        handler.port = self.server_address[1]  # type: ignore[attr-defined]
        # A node of the sandbox reaches this machine by one address only.
        handler.other_host = "localhost" if address == "127.0.0.1" else address  # type: ignore[attr-defined]
        self.url = f"http://{address}:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def handle_error(self, *_: object) -> None:
        pass  # a client that was killed
