"""Loads over OpenAI's protocol: what is sent, when each text came, and what a broken stream is called."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.openai_server import DONE, Script, delta, event, openai_server
from trtllm_hpc.bench.load.loops import ClosedPlan, OpenPlan
from trtllm_hpc.bench.load.messages import LoadReply, ParsedReply, Target, encode_request, parse_reply
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.metrics import TPOT, TTFT_FROM_SEND
from trtllm_hpc.bench.records import Sample
from trtllm_hpc.bench.results import ClosedLoop, Window
from trtllm_hpc.bench.token_counts import to_records
from trtllm_hpc.bench.workload.request import WorkloadRequest
from trtllm_hpc.config.benchmark import Protocol
from trtllm_hpc.errors import NotReady
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.proxy import make_certificate
from trtllm_hpc.runtime.records import Endpoint

REQUEST = WorkloadRequest(9, "Grüße")
NOWHERE = Endpoint("1", "here", "127.0.0.1", 0, 0, 0, ["one"], 0.0, openai_url="http://127.0.0.1:1/v1")


def body(request: WorkloadRequest = REQUEST, protocol: Protocol = "openai", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        encode_request(request, Target(NOWHERE, "one", protocol=protocol, **more))
    )
    return found


def sent(
    script: Script, *, protocol: Protocol = "openai", streaming: bool = True
) -> tuple[LoadReply, ParsedReply]:
    with openai_server(script) as endpoint:
        target = Target(endpoint, "one", protocol=protocol, streaming=streaming, timeout_s=10)
        [reply] = run_load(OpenPlan(target, [encode_request(REQUEST, target)], Clock(), [0.0])).replies
    return reply, parse_reply(reply, target)


# What is sent -----------------------------------------------------------------------------------


def test_a_text_is_a_prompt_and_in_a_chat_the_users_message() -> None:
    assert body() == {"model": "one", "prompt": "Grüße", "max_tokens": 9, "stream": False}
    chat = body(protocol="openai-chat", streaming=True)
    assert chat["messages"] == [{"role": "user", "content": "Grüße"}] and "prompt" not in chat
    assert chat["stream"] and chat["stream_options"] == {"include_usage": True}


def test_ids_are_sent_as_they_are_but_not_in_a_chat() -> None:
    request = WorkloadRequest(9, token_ids=(5, 7))
    assert body(request)["prompt"] == [5, 7]
    with pytest.raises(ValueError, match="a chat accepts text"):
        body(request, "openai-chat")


# What comes back --------------------------------------------------------------------------------


def test_the_first_text_is_the_first_that_has_letters() -> None:
    """The role, an empty delta and the usage are no tokens; two events may come in one piece."""
    pieces: list[bytes | float] = [
        delta(role="assistant", content=""),
        0.1,
        delta(reasoning_content="hm") + delta("GR"),
        0.1,
        delta("Ü"),
        delta() + event(usage=(7, 4)) + DONE,
    ]
    reply, parsed = sent(Script(pieces), protocol="openai-chat")
    assert reply.ok and [chunk.text for chunk in parsed.chunks] == ["hm", "GR", "Ü"]
    one, two, three = (chunk.time_s for chunk in parsed.chunks)
    # A busy machine stamps later, never earlier: so the pauses count from the request.
    assert one == two < three <= reply.ended_s
    assert one - reply.sent_s > 0.09 and three - reply.sent_s > 0.19
    assert parsed.usage is not None and (parsed.usage.input_tokens, parsed.usage.output_tokens) == (7, 4)


def test_an_answer_ends_with_its_last_piece_and_not_with_the_connection() -> None:
    reply, _ = sent(Script([event("GR"), DONE, 0.2]))
    assert reply.ok and reply.ended_s == reply.chunks[-1][0]


def test_an_answer_as_a_whole_is_one_response() -> None:
    answer = {
        "choices": [{"message": {"role": "assistant", "content": "GRÜSSE"}}],
        "usage": {"completion_tokens": 6},
    }
    reply, parsed = sent(Script(body=json.dumps(answer).encode()), protocol="openai-chat", streaming=False)
    assert reply.ok and parsed.text == "GRÜSSE" and not parsed.streamed
    assert parsed.usage is not None and parsed.usage.output_tokens == 6


@pytest.mark.parametrize(
    ("end", "status"),
    [([], "HTTP 200"), ([DONE], "ok"), ([event("", reason="stop")], "ok"), ([b"data: [DONE]"], "ok")],
)
def test_a_stream_without_an_end_is_incomplete(end: list[bytes], status: str) -> None:
    reply, parsed = sent(Script([event("GR"), *end]))
    assert reply.status == status and parsed.text == "GR"
    assert (reply.error is None) == (status == "ok")
    assert status == "ok" or "the stream ended early" in str(reply.error)


@pytest.mark.parametrize(
    "error",
    [
        b'event: error\ndata: {"message": "no memory"}\n\n' + DONE,
        b'data: {"error": {"message": "no memory", "type": "server_error"}}\n\n' + DONE,
        b'data: {"object": "error", "message": "no memory", "code": 500}\n\n',
        b'data: {"error": "no memory"}\n\n',
    ],
)
def test_an_error_in_the_stream_is_an_error(error: bytes) -> None:
    reply, _ = sent(Script([event("GR"), error]))
    assert (reply.status, reply.error) == ("HTTP 200", "no memory")


def test_a_text_may_speak_of_errors() -> None:
    reply, parsed = sent(Script([event('say "error" {"error": 1}'), event("", reason="length"), DONE]))
    assert reply.ok and parsed.text == 'say "error" {"error": 1}'


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b'{"error": {"message": "too long", "type": "invalid_request_error", "code": null}}', "too long"),
        (b'{"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}', "too long"),
        (b'{"detail": "too long"}', "too long"),
        (b"too long", "too long"),
    ],
)
def test_an_error_has_its_status_and_the_servers_message(answer: bytes, words: str) -> None:
    reply, parsed = sent(Script(body=answer, status=400))
    assert (reply.status, reply.error, parsed.chunks) == ("HTTP 400", words, ())


def test_a_slow_answer_times_out() -> None:
    with openai_server(Script([event("GR"), 600.0])) as endpoint:
        target = Target(endpoint, "one", protocol="openai", streaming=True, timeout_s=0.2)
        [reply] = run_load(OpenPlan(target, [encode_request(REQUEST, target)], Clock(), [0.0])).replies
    assert reply.status == "DEADLINE_EXCEEDED" and reply.ended_s - reply.sent_s >= 0.2


@pytest.mark.parametrize("processes", [1, 2])
def test_a_closed_loop_with_a_key(tmp_path: Path, processes: int) -> None:
    (tmp_path / "key").write_text("secret\n")
    script = Script([event("A"), 0.1, event("B", reason="length"), event(usage=(1, 2)), DONE])
    with openai_server(script) as endpoint:
        keyed = Endpoint(**{**vars(endpoint), "key_file": str(tmp_path / "key")})
        target = Target(keyed, "one", protocol="openai", streaming=True)
        payloads = [encode_request(REQUEST, target)]
        load = run_load(ClosedPlan(target, payloads, Clock(), 4, count=12), processes=processes)
    assert len(load.replies) == 12 and all(reply.ok for reply in load.replies)
    assert {key for _, _, key in script.asked} == {"Bearer secret"}
    gaps = [
        after.time_s - before.time_s
        for reply in load.replies
        for before, after in itertools.pairwise(parse_reply(reply, target).chunks)
    ]
    assert len(gaps) == 12 and min(gaps) > 0.02


def test_streams_over_tls(tmp_path: Path) -> None:
    text = "A" * 100_000
    script = Script([event("B"), 0.05, event(text, reason="stop"), DONE])
    with openai_server(script, tls=tmp_path) as endpoint:
        target = Target(endpoint, "one", protocol="openai", streaming=True)
        payloads = [encode_request(WorkloadRequest(9, text), target)]
        load = run_load(ClosedPlan(target, payloads, Clock(), 4, count=12))
    assert len(load.replies) == 12 and all(reply.ok for reply in load.replies)
    chunks = [parse_reply(reply, target).chunks for reply in load.replies]
    assert {tuple(chunk.text for chunk in answer) for answer in chunks} == {("B", text)}
    assert min(answer[1].time_s - answer[0].time_s for answer in chunks) > 0.02


def test_another_server_s_certificate_is_not_trusted(tmp_path: Path) -> None:
    make_certificate(RunPaths(tmp_path), "127.0.0.1")
    with openai_server(Script([DONE]), tls=tmp_path) as endpoint:
        make_certificate(RunPaths(tmp_path), "127.0.0.1")
        target = Target(endpoint, "one", protocol="openai")
        with pytest.raises(NotReady, match="certificate verify failed"):
            run_load(OpenPlan(target, [encode_request(REQUEST, target)], Clock(), [0.0]))


def test_without_a_server_the_load_does_not_start() -> None:
    [port] = free_ports(1)
    endpoint = Endpoint("1", "here", "127.0.0.1", 0, 0, 0, [], 0.0, openai_url=f"http://127.0.0.1:{port}/v1")
    target = Target(endpoint, "one", protocol="openai")
    with pytest.raises(NotReady, match=f"No HTTP connection to http://127.0.0.1:{port}/v1"):
        run_load(OpenPlan(target, [encode_request(REQUEST, target)], Clock(), [0.0]))


def test_what_a_stream_counts_as() -> None:
    """An answer ends with its last token; what it thinks is output; a read may bring several events."""
    counts = {
        "prompt_tokens": 7,
        "completion_tokens": 9,
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    usage = b'data: {"choices": [], "usage": %b}\n\n' % json.dumps(counts).encode()
    first, second = delta(reasoning_content="hm, well") + delta("GR"), delta("\u00dcS") + delta("SE")
    pieces = [(1.0, delta(role="assistant", content="")), (2.0, first), (4.0, second), (5.0, usage + DONE)]
    reply = LoadReply(0, 0.5, 0.5, 5.0, chunks=pieces)
    parsed = parse_reply(reply, Target(NOWHERE, "one", protocol="openai-chat", streaming=True))
    window = Window(0.0, 9.0)
    [record] = to_records([reply], [parsed], [REQUEST], level=0, repeat=0, window=window)
    assert (record.chunks_s, record.ended_s) == ((2.0, 2.0, 4.0, 4.0), 4.0)
    assert (record.output_tokens, record.reasoning_tokens, record.first_answer_s) == (9, 2, 2.0)
    sample = Sample([record], window, ClosedLoop(1))
    assert TTFT_FROM_SEND.of(sample).p50 == 1500.0
    # Nine tokens, however many of them came with the first chunk: as other tools compute it.
    assert TPOT.of(sample).p50 == 2000.0 / 8
