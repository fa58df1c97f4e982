"""When a server with OpenAI's protocol is ready: not when it listens, but when it has made a token."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.runtime.ranks import Ranks, end
from tests.waiting import eventually
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.runtime.leader import Probe
from trtllm_hpc.runtime.servers.openai import OpenAIHttp

MODELS = json.dumps({"object": "list", "data": [{"id": "llama"}]})
NO_TEMPLATE = json.dumps({"object": "error", "error": {"message": "no chat template is set", "code": 500}})
OK = (200, "")


@dataclass
class Served:
    """A server that answers each path as it is told, and hangs where it is told nothing."""

    answers: dict[str, tuple[int, str]]
    asked: list[tuple[str, str]] = field(default_factory=list)
    port: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def tokens_asked(self) -> list[str]:
        """The paths of questions for a token, in their order."""
        return [path for path, _ in self.asked if path.endswith("completions")]


def handler(served: Served) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            served.asked.append((self.path, self.rfile.read(length).decode()))
            if self.path not in served.answers:
                served.over.wait(3600)
                return
            status, text = served.answers[self.path]
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    return Handler


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served({"/health": OK, "/v1/models": (200, MODELS)})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(made)) as server:
        made.port = server.server_address[1]
        threading.Thread(target=server.serve_forever).start()
        try:
            yield made
        finally:
            made.over.set()
            server.shutdown()


COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.mark.parametrize(
    ("chats", "path", "asked"),
    [
        (False, COMPLETION, {"prompt": "a"}),
        (True, CHAT, {"messages": [{"role": "user", "content": "a"}]}),
    ],
)
def test_a_server_is_ready_when_it_has_made_a_token(
    served: Served, chats: bool, path: str, asked: dict[str, object]
) -> None:
    http = OpenAIHttp(served.place, chats=chats)
    assert eventually(lambda: http.ready_models() is None and served.tokens_asked)
    for _ in range(5):
        assert http.ready_models() is None
    assert served.tokens_asked == [path], "while it only listens, no second question is asked"
    assert http.not_ready() == "/health answers, but no token comes"
    served.answers[path] = OK
    again = OpenAIHttp(served.place, chats=chats)
    assert eventually(again.ready_models) == ["llama"]
    # Whether it still computes is asked in the way that it has answered.
    [question] = again.questions(["llama"])
    assert (question.path, json.loads(question.body)) == (path, {"model": "llama", "max_tokens": 1, **asked})


@pytest.mark.parametrize(
    "refusal", [(500, NO_TEMPLATE), (200, NO_TEMPLATE), (503, '{"error": "no chat template is set"}')]
)
def test_a_server_that_makes_no_token_is_asked_again_and_its_words_are_told(
    served: Served, refusal: tuple[int, str]
) -> None:
    served.answers[CHAT] = refusal
    http = OpenAIHttp(served.place, chats=True)
    assert eventually(lambda: http.ready_models() is None and len(served.tokens_asked) > 3)
    words = "asked for a chat, it said: no chat template is set"
    assert http.not_ready() == f"/health answers, but no token comes; {words}"
    served.answers[CHAT] = OK
    assert eventually(http.ready_models) == ["llama"]


def test_a_front_is_asked_with_tokens_for_the_models_of_its_servers(served: Served) -> None:
    served.answers |= {COMPLETION: OK, "/v1/models": (404, "")}
    assert eventually(OpenAIHttp(served.place, ["one"], prompt=(1, 2)).ready_models) == ["one"]
    body = json.loads(dict(served.asked)[COMPLETION])
    assert body == {"model": "one", "prompt": [1, 2], "max_tokens": 1}
    assert OpenAIHttp(served.place).ready_models() is None, "it lists none"
    assert eventually(OpenAIHttp(served.place, unlisted="/models/m").ready_models) == ["/models/m"]


def test_a_server_that_hangs_is_known_sooner_if_nobody_else_waits(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without others' requests it is not busy. Once they have gone, it was not busy with theirs."""
    monkeypatch.setattr("trtllm_hpc.runtime.leader.INTERVAL_S", 0.1)
    served.answers[COMPLETION] = OK
    http = OpenAIHttp(served.place)
    probe = Probe(http, 1, 1)
    probe.begin(["llama"])
    try:
        assert eventually(lambda: len(served.tokens_asked) > 1)
        with socket.create_connection(("127.0.0.1", served.port)) as other:
            other.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
            del served.answers[COMPLETION]
            time.sleep(2)
            assert probe.fault is None, "it may be busy with the other's request"
        left = time.monotonic()
        assert eventually(lambda: probe.fault is not None)
        assert time.monotonic() - left >= 0.9
        assert probe.fault is not None and "has answered nothing for " in probe.fault
    finally:
        probe.end()


def test_a_server_that_does_not_listen_is_not_asked_for_a_token(served: Served) -> None:
    served.answers["/health"] = (503, "")
    http = OpenAIHttp(served.place)
    assert http.ready_models() is None and served.tokens_asked == []
    assert http.not_ready() == f"the server does not answer at {served.place}"


def test_a_rank_asks_gpt_oss_for_a_chat_and_stages_its_vocabulary(
    served: Served, ranks: Ranks, tmp_path: Path
) -> None:
    """The checkpoint of this one has no vocabulary, which its log says; the server's words say the rest."""
    (tmp_path / "oss").mkdir()
    (tmp_path / "oss" / "config.json").write_text('{"model_type": "gpt_oss"}')
    served.answers[CHAT] = (400, '{"message": "error downloading or loading vocab file"}')
    code, output = end(
        ranks.start(
            behaviour="mute",
            environment={"TRTLLM_HPC_ADDRESS": "127.0.0.1", "TRTLLM_HPC_HTTP_PORT": str(served.port)},
            driver="openai",
            model=str(tmp_path / "oss"),
            ready_timeout_seconds=1,
        )
    )
    assert code == ExitCode.READINESS and "asked for a chat, it said:" in output
    assert "loading vocab file" in output and "chats need a download" in output
    assert set(served.tokens_asked) == {CHAT}
