"""Load over gRPC, against gRPC's own server."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from hpack import Encoder

from tests.bench.load.grpc_server import Behaviour, endpoint, grpc_server
from tests.bench.load.observe import interrupted, outstanding
from trtllm_hpc.bench.load import loops
from trtllm_hpc.bench.load.grpc_client import call_headers
from trtllm_hpc.bench.load.http2 import (
    CANCEL,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    RST_STREAM,
    SETTINGS,
    encode_frame,
    split_frames,
)
from trtllm_hpc.bench.load.loops import ClosedPlan, LoadResult, OpenPlan
from trtllm_hpc.bench.load.messages import LoadReply, Target
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.errors import NotReady


def run_all(target: Target, *payloads: bytes) -> LoadResult:
    return run_load(OpenPlan(target, payloads, Clock(), [0.0] * len(payloads)))


def test_answers_arrive_unchanged_in_the_order_of_sending() -> None:
    with grpc_server() as ready:
        load = run_all(Target(ready, "m"), b"one", b"", b"two")
    assert [reply.status for reply in load.replies] == ["ok"] * 3
    assert [[raw for _, raw in reply.chunks] for reply in load.replies] == [[b"one"], [b""], [b"two"]]
    for reply in load.replies:
        assert load.start_s == reply.due_s <= reply.sent_s <= reply.ended_s == reply.chunks[0][0]
    assert load.client.processes == 1 and 0 < load.client.cpu_s <= load.client.wall_s * 16
    assert not load.interrupted


def test_bodies_larger_than_the_flow_control_windows_arrive_complete() -> None:
    """Flow control allows 64 KiB at first, a frame holds 16 KiB."""
    bodies = [bytes([65 + number]) * (300_000 + number) for number in range(12)]
    with grpc_server() as ready:
        load = run_all(Target(ready, "m"), *bodies, b"size 3000000")
    assert [reply.chunks[0][1] for reply in load.replies[:-1]] == bodies
    assert load.replies[-1].chunks[0][1] == bytes(3_000_000)


def test_an_error_has_its_status_and_the_servers_message() -> None:
    with grpc_server() as ready:
        (infer,) = run_all(Target(ready, "m"), "fail: kein Glück 100 %".encode()).replies
        (stream,) = run_all(Target(ready, "m", streaming=True), b"fail: no luck").replies
    assert (infer.status, infer.error, infer.chunks) == ("INVALID_ARGUMENT", "kein Glück 100 %", [])
    assert (stream.status, stream.error) == ("RESOURCE_EXHAUSTED", "no luck")


@pytest.mark.parametrize(("http_status", "frame"), [("200", "reset"), ("200", "end"), ("502", "end")])
def test_a_server_lost_behind_a_proxy_is_named_in_each_manner_of_proxies(
    http_status: str, frame: str
) -> None:
    """HAProxy 2.6 ends the stream without a status, 3.0 cancels it; and both may answer 502."""
    head = Encoder().encode([(":status", http_status), ("content-type", "application/grpc")])

    def answer(listening: socket.socket) -> None:
        client, _ = listening.accept()
        with client:
            client.sendall(encode_frame(SETTINGS, 0, 0))
            frames, rest = split_frames(client.recv(65536).removeprefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
            while not any(kind == HEADERS for kind, _, _, _ in frames):
                frames, rest = split_frames(rest + client.recv(65536))
            flags = END_HEADERS | (END_STREAM if frame == "end" else 0)
            client.sendall(encode_frame(HEADERS, flags, 1, head))
            if frame == "reset":
                client.sendall(encode_frame(RST_STREAM, 0, 1, CANCEL.to_bytes(4, "big")))
            while client.recv(65536):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer, args=(listening,), daemon=True).start()
        (reply,) = run_all(Target(endpoint(listening.getsockname()[1]), "m"), b"one").replies
    assert reply.error == "the connection to the server was lost before it answered: try again"
    assert reply.status != "ok"


def test_a_request_that_times_out_does_not_affect_others() -> None:
    with grpc_server() as ready:
        # Two seconds, since those that are fine must be answered within them on any machine.
        target = Target(ready, "m", timeout_s=2)
        load = run_load(OpenPlan(target, [b"never", b"fine", b"later"], Clock(), [0.0, 0.0, 2.1]))
    slow, fine, later = load.replies
    assert slow.status == "DEADLINE_EXCEEDED" and slow.ended_s - slow.sent_s >= 2
    assert fine.ok and later.ok


def test_the_timeout_may_be_a_year() -> None:
    """The header has at most eight digits: in milliseconds little more than a day."""
    with grpc_server() as ready:
        target = Target(ready, "m", timeout_s=31_536_000)
        load = run_all(target, b"fine")
    assert [reply.status for reply in load.replies] == ["ok"]
    assert dict(call_headers(target))["grpc-timeout"] == "31536001S"


def test_a_timeout_at_the_server_is_reported_with_its_length() -> None:
    with grpc_server() as ready:
        load = run_all(
            Target(ready, "m", timeout_s=7), b"late: Deadline Exceeded", b"late: the queue is full"
        )
    assert [reply.status for reply in load.replies] == ["DEADLINE_EXCEEDED"] * 2
    assert [reply.error for reply in load.replies] == ["no whole answer in 7 s", "the queue is full"]


def test_a_closed_loop_keeps_its_concurrency_and_sends_its_count() -> None:
    with grpc_server() as ready:
        load = run_load(ClosedPlan(Target(ready, "m"), [b"sleep 0.02", b"b", b"c"], Clock(), 3, count=20))
    replies = load.replies
    assert [reply.index for reply in replies] == [0, 1, 2] * 6 + [0, 1]
    assert all(0 <= count <= 3 for count in outstanding(replies))
    # A slot is due again when its last answer has arrived.
    assert {reply.due_s for reply in replies[3:]} <= {reply.ended_s for reply in replies}
    assert [reply.due_s for reply in replies[:3]] == [load.start_s] * 3


def test_a_limit_of_streams_leads_to_more_connections() -> None:
    with grpc_server(max_concurrent_streams=2) as ready:
        load = run_load(ClosedPlan(Target(ready, "m"), [b"sleep 0.01"], Clock(), 7, count=60))
    assert Counter(reply.status for reply in load.replies) == {"ok": 60}


def test_no_request_fails_when_the_server_closes_connections_gracefully() -> None:
    """With GOAWAY, as proxies do after a number of requests, and servers after some time."""
    server = Behaviour()
    with grpc_server(behaviour=server, max_connection_age_ms=60, max_connection_age_grace_ms=60_000) as ready:
        # Half a second, or more on a slow machine.
        load = run_load(ClosedPlan(Target(ready, "m"), [b"sleep 0.01"], Clock(), 4, count=200))
    assert Counter(reply.status for reply in load.replies) == {"ok": 200}
    assert len(server.peers) > 2


def test_only_requests_during_a_restart_of_the_server_fail() -> None:
    seen: Counter[str] = Counter()
    with ExitStack() as first, ExitStack() as second:
        ready = first.enter_context(grpc_server())

        def restart(ended: LoadReply) -> None:
            what = "no connection" if "no connection to 127.0.0.1" in (ended.error or "") else ended.status
            seen[what] += 1
            if (what, seen[what]) == ("ok", 20):
                first.close()
            if (what, seen[what]) == ("no connection", 5):
                second.enter_context(grpc_server(ready.grpc_port))

        # The last request is due seconds after the one that meets no server.
        due_s = [*(number / 100 for number in range(90)), 3.0]
        load = run_load(
            OpenPlan(Target(ready, "m", timeout_s=60), [b"x"] * 91, Clock(), due_s), progress=restart
        )
    statuses = [reply.status for reply in load.replies]
    # When it stops, the server cancels the requests that it has begun.
    assert len(statuses) == 91 and set(statuses) - {"CANCELLED"} == {"ok", "UNAVAILABLE"}
    assert seen["ok"] > 20 and seen["no connection"] >= 5 and statuses[-1] == "ok"


@pytest.mark.parametrize("closed", [True, False])
def test_a_server_that_does_not_return_ends_the_load(monkeypatch: pytest.MonkeyPatch, closed: bool) -> None:
    monkeypatch.setattr(loops, "GIVE_UP_S", 0.5)
    answered = threading.Event()

    def count(ended: LoadReply) -> None:
        if ended.ok:
            answered.set()

    def load(target: Target) -> LoadResult:
        if closed:
            return run_load(ClosedPlan(target, [b"sleep 0.01"], Clock(), 4, until_s=60), progress=count)
        due_s = [number / 100 for number in range(6000)]
        return run_load(OpenPlan(target, [b"x"] * 6000, Clock(), due_s), progress=count)

    with ThreadPoolExecutor(1) as executor:
        with grpc_server() as ready:
            running = executor.submit(load, Target(ready, "m", timeout_s=5))
            assert answered.wait(10)
        ended = running.result()
    assert ended.disconnected and not ended.interrupted and any(reply.ok for reply in ended.replies)
    last = ended.replies[-loops.MIN_UNCONNECTED :]
    assert all((reply.error or "").startswith("no connection to ") for reply in last)
    assert last[-1].ended_s < 30


@pytest.mark.parametrize("processes", [1, 2])
def test_a_server_that_only_fails_ends_the_load_after_a_number_of_requests(processes: int) -> None:
    with grpc_server() as ready:
        target = Target(ready, "m", timeout_s=5)
        due_s = [number / 100 for number in range(2000)]
        answered = run_load(OpenPlan(target, [b"x"] * 100, Clock(), [0.0] * 100, max_failures=20))
        load = run_load(
            OpenPlan(target, [b"fail: no"] * 2000, Clock(), due_s, max_failures=20), processes=processes
        )
    assert answered.failures is None and len(answered.replies) == 100
    assert load.failures is not None and load.failures >= 20 and not load.disconnected
    assert len(load.replies) < 1000


def test_requests_that_fail_together_are_no_failures_in_a_row() -> None:
    """As when one of several instances dies, with what it had begun."""
    watch = loops.FailureWatch(3)
    together = [LoadReply(number, 0.0, 0.0, 1.0, "UNAVAILABLE", "lost") for number in range(50)]
    assert not any(map(watch.gives_up, together))
    later = [LoadReply(50 + number, 2.0, 2.0, 3.0, "UNAVAILABLE", "lost") for number in range(3)]
    assert [watch.gives_up(reply) for reply in later] == [False, False, True]
    assert not watch.gives_up(LoadReply(60, 4.0, 4.0, 5.0, "ok")) and not watch.gives_up(later[0])


def test_without_a_server_the_load_does_not_start() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(NotReady, match=f"127.0.0.1:{port} .host node01."):
        run_all(Target(endpoint(port), "m"), b"x")


def test_a_late_request_is_sent_at_once_and_none_is_dropped() -> None:
    """The schedule began half a second ago."""
    due = [number / 1000 - 0.5 for number in range(500)]
    with grpc_server() as ready:
        load = run_load(OpenPlan(Target(ready, "m"), [b"x"] * 500, Clock(), due))
    assert [reply.index for reply in load.replies] == list(range(500))
    assert all(reply.ok and reply.sent_s > reply.due_s for reply in load.replies)
    first = load.replies[0]
    assert first.sent_s - first.due_s >= 0.5 and first.due_s == load.start_s - 0.5


def test_a_server_of_another_protocol_is_not_ready() -> None:
    """For example the HTTP port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            peer, _ = listening.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NotReady, match="the server closed the connection"):
            run_all(Target(endpoint(listening.getsockname()[1]), "m"), b"x")
        thread.join()


_IN_A_NOTEBOOK = """
import asyncio
import sys
from tests.bench.load.grpc_server import endpoint
from trtllm_hpc.bench.load.messages import Target
from trtllm_hpc.bench.load.loops import OpenPlan
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
def count(ended):
    print("answer", flush=True)
async def cell():
    target = Target(endpoint(int(sys.argv[1])), "m")
    load = run_load(OpenPlan(target, [b"a", b"b", b"never"], Clock(), [0, 0.05, 100]), progress=count)
    print(len(load.replies), load.interrupted, flush=True)
asyncio.new_event_loop().run_until_complete(cell())
"""


def test_where_an_event_loop_runs_ctrl_c_ends_the_load_as_well() -> None:
    with grpc_server() as ready:
        assert interrupted(_IN_A_NOTEBOOK, str(ready.grpc_port))[0] == "2 True\n"
