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
from trtllm_hpc.runtime.probe import Probe
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
        asking = ("/health_generate", "/v1/completions", "/v1/chat/completions")
        return [path for path, _ in self.asked if path in asking]


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


def test_a_token_of_health_generate_is_enough(served: Served) -> None:
    served.answers["/health_generate"] = OK
    http = OpenAIHttp(served.place)
    assert eventually(http.ready_models) == ["llama"]
    assert served.tokens_asked == ["/health_generate"]
    [question] = http.questions(["llama"])
    assert (question.path, question.body) == ("/health_generate", None)


@pytest.mark.parametrize("answer", [(500, NO_TEMPLATE), (404, '{"detail": "Not Found"}')])
def test_without_health_generate_a_completion_is_asked_for(served: Served, answer: tuple[int, str]) -> None:
    """It fails for a model without a chat template, and older releases do not have it."""
    served.answers |= {"/health_generate": answer, "/v1/completions": (200, '{"choices": [{"text": "b"}]}')}
    http = OpenAIHttp(served.place)
    assert eventually(http.ready_models) == ["llama"]
    assert served.tokens_asked == ["/health_generate", "/v1/completions"]
    body = json.loads(dict(served.asked)["/v1/completions"])
    # In tokens: a front that goes by the KV cache would load a tokenizer for text.
    assert body == {"model": "llama", "prompt": [1, 2, 3, 4], "max_tokens": 1}
    # Whether it still computes is asked in the way that it has answered.
    [question] = http.questions(["llama"])
    assert (question.path, json.loads(question.body or b"{}")) == ("/v1/completions", body)


@pytest.mark.parametrize(
    "completion", [(500, NO_TEMPLATE), (200, NO_TEMPLATE), (503, '{"error": "no chat template is set"}')]
)
def test_a_server_that_makes_no_token_is_not_ready_and_its_words_are_told(
    served: Served, completion: tuple[int, str]
) -> None:
    served.answers |= {"/health_generate": (500, ""), "/v1/completions": completion}
    http = OpenAIHttp(served.place)

    def asked_again() -> bool:
        assert http.ready_models() is None
        return len(served.tokens_asked) > 3

    assert eventually(asked_again)
    assert set(served.tokens_asked[1:]) == {"/v1/completions"}
    said = "asked for one, it said: no chat template is set"
    assert http.not_ready() == f"/health answers, but no token comes; {said}"


CHAT = "/v1/chat/completions"
NO_VOCABULARY = json.dumps(
    {"object": "error", "message": "error downloading or loading vocab file", "code": 400}
)


def test_gpt_oss_is_ready_when_it_chats_whatever_health_generate_says(served: Served) -> None:
    """That route does not take the way of gpt-oss's chats, which need a vocabulary."""
    served.answers |= {"/health_generate": OK, "/v1/completions": OK, CHAT: (400, NO_VOCABULARY)}
    http = OpenAIHttp(served.place, chat="harmony")

    def asked_again() -> bool:
        assert http.ready_models() is None
        return len(served.tokens_asked) > 3

    assert eventually(asked_again)
    assert set(served.tokens_asked) == {CHAT}
    assert "asked for a chat, it said:" in http.not_ready() and "loading vocab file" in http.not_ready()
    served.answers[CHAT] = OK
    assert eventually(http.ready_models) == ["llama"]
    body = json.loads(dict(served.asked)[CHAT])
    assert body == {"model": "llama", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    [question] = http.questions(["llama"])
    assert question.path == CHAT


def test_a_model_with_a_template_is_not_ready_by_completions(served: Served) -> None:
    served.answers |= {"/health_generate": (500, ""), "/v1/completions": OK, CHAT: (500, NO_TEMPLATE)}
    http = OpenAIHttp(served.place, chat="template")
    assert eventually(lambda: http.ready_models() is None and len(served.tokens_asked) > 3)
    assert set(served.tokens_asked[1:]) == {CHAT}
    assert http.not_ready().endswith("asked for a chat, it said: no chat template is set")
    served.answers[CHAT] = OK
    assert eventually(http.ready_models) == ["llama"]


def test_a_model_with_a_template_is_ready_as_soon_as_health_generate_has_chatted(served: Served) -> None:
    served.answers["/health_generate"] = OK
    assert eventually(OpenAIHttp(served.place, chat="template").ready_models) == ["llama"]
    assert served.tokens_asked == ["/health_generate"]


def test_a_server_that_lists_no_models_has_those_that_are_known(served: Served) -> None:
    served.answers |= {"/health_generate": OK, "/v1/models": (404, "")}
    assert eventually(OpenAIHttp(served.place, ["one"]).ready_models) == ["one"]
    unnamed = OpenAIHttp(served.place)
    assert eventually(lambda: unnamed.ready_models() is None and len(served.tokens_asked) > 2)


def test_while_it_only_listens_no_second_question_is_asked(served: Served) -> None:
    http = OpenAIHttp(served.place)
    assert eventually(lambda: http.ready_models() is None and served.tokens_asked)
    for _ in range(5):
        assert http.ready_models() is None
    assert served.tokens_asked == ["/health_generate"]
    assert http.not_ready() == "/health answers, but no token comes"


def test_the_probe_leaves_the_statistics_to_others(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading them takes them away."""
    monkeypatch.setattr("trtllm_hpc.runtime.probe.INTERVAL_S", 0.01)
    served.answers |= {"/health_generate": OK, "/metrics": (200, "[]")}
    probe = Probe(OpenAIHttp(served.place), 45, 45)
    probe.begin(["llama"])
    try:
        assert eventually(lambda: len(served.tokens_asked) > 3)
    finally:
        probe.end()
    assert "/metrics" not in dict(served.asked)


def test_a_server_that_hangs_is_known_sooner_if_nobody_else_waits(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without others' requests it is not busy. Once they have gone, it was not busy with theirs."""
    monkeypatch.setattr("trtllm_hpc.runtime.probe.INTERVAL_S", 0.1)
    served.answers["/health_generate"] = OK
    http = OpenAIHttp(served.place)
    probe = Probe(http, 1, 1)
    probe.begin(["llama"])
    try:
        assert eventually(lambda: len(served.tokens_asked) > 1)
        with socket.create_connection(("127.0.0.1", served.port)) as other:
            other.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
            del served.answers["/health_generate"]
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


def at(served: Served) -> dict[str, str]:
    """The variables of a server without a proxy that is already there."""
    address, _, port = served.place.rpartition(":")
    return {"TRTLLM_HPC_ADDRESS": address, "TRTLLM_HPC_HTTP_PORT": port}


def test_a_rank_asks_gpt_oss_for_a_chat_and_stages_its_vocabulary(
    served: Served, ranks: Ranks, tmp_path: Path
) -> None:
    """The checkpoint of this one has no vocabulary, which its log says; the server's words say the rest."""
    (tmp_path / "oss").mkdir()
    (tmp_path / "oss" / "config.json").write_text('{"model_type": "gpt_oss"}')
    served.answers |= {"/health_generate": OK, CHAT: (400, NO_VOCABULARY)}
    code, output = end(
        ranks.start(
            behaviour="mute",
            environment=at(served),
            driver="openai",
            model=str(tmp_path / "oss"),
            ready_timeout_seconds=1,
        )
    )
    assert code == ExitCode.READINESS and "asked for a chat, it said:" in output
    assert "loading vocab file" in output and "chats need a download" in output
    assert set(served.tokens_asked) == {CHAT}
