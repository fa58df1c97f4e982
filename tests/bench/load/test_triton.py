"""Every protocol and kind of model, against a real tritonserver."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Literal

import pytest

from tests.bench.load.observe import interrupted
from tests.bench.models import CORE, LLM_API
from tests.client.echo_server import echo_server
from trtllm_hpc.bench.load.loops import ClosedPlan, LoadResult, OpenPlan
from trtllm_hpc.bench.load.messages import ParsedReply, Target, encode_request, parse_reply
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.workload.request import WorkloadRequest
from trtllm_hpc.errors import NotReady
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.wire.served_model import ENSEMBLE

pytestmark = pytest.mark.triton

Protocol = Literal["grpc", "http"]
BOTH = pytest.mark.parametrize("protocol", ["grpc", "http"])


def send(target: Target, *requests: WorkloadRequest) -> tuple[LoadResult, list[ParsedReply]]:
    payloads = [encode_request(request, target, str(number)) for number, request in enumerate(requests)]
    load = run_load(OpenPlan(target, payloads, Clock(), [0.0] * len(requests)))
    return load, [parse_reply(reply, target) for reply in load.replies]


def send_one(target: Target, request: WorkloadRequest) -> ParsedReply:
    load, (parsed,) = send(target, request)
    assert load.replies[0].status == "ok", load.replies[0]
    return parsed


@BOTH
@pytest.mark.parametrize("model", ["ensemble", "llm_api"])
def test_text_models_without_streaming(endpoint: Endpoint, protocol: Protocol, model: str) -> None:
    kind = LLM_API if model == "llm_api" else ENSEMBLE
    parsed = send_one(Target(endpoint, model, kind, protocol), WorkloadRequest(9, "Grüße, “you”"))
    assert (parsed.text, parsed.token_ids) == ("GRÜSSE, “YOU”", None)
    assert len(parsed.chunks) == 1 and not parsed.streamed


@BOTH
def test_a_decoupled_model_streams_its_letters(endpoint: Endpoint, protocol: Protocol) -> None:
    target = Target(endpoint, "decoupled", protocol=protocol, streaming=True, decoupled=True)
    parsed = send_one(target, WorkloadRequest(9, "slowly"))
    assert parsed.streamed and parsed.text == "SLOWLY"
    assert [chunk.text for chunk in parsed.chunks] == list("SLOWLY")
    times = [chunk.time_s for chunk in parsed.chunks]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    # The model waits 0.1 s before the third letter.
    assert max(gaps) == gaps[1] and 0.05 < gaps[1] < 1


@BOTH
def test_a_model_that_is_not_decoupled_can_be_streamed_too(endpoint: Endpoint, protocol: Protocol) -> None:
    parsed = send_one(
        Target(endpoint, "ensemble", protocol=protocol, streaming=True), WorkloadRequest(3, "hello")
    )
    assert [chunk.text for chunk in parsed.chunks] == ["HELLO"] and parsed.streamed


@BOTH
def test_the_core_model_takes_ids(endpoint: Endpoint, protocol: Protocol) -> None:
    target = Target(endpoint, "tensorrt_llm", CORE, protocol)
    parsed = send_one(target, WorkloadRequest(5, token_ids=(11, 12, 13)))
    # This one repeats the prompt and stops two tokens early.
    assert parsed.token_ids == (11, 12, 13, 7, 7, 7)
    assert parsed.text is None
    assert send_one(target, WorkloadRequest(4, token_ids=(5,))).token_ids == (5, 7, 7)


@BOTH
@pytest.mark.parametrize("streaming", [True, False])
def test_the_core_model_streams_ids(endpoint: Endpoint, protocol: Protocol, streaming: bool) -> None:
    target = Target(
        endpoint,
        "core_decoupled",
        CORE,
        protocol,
        streaming,
        decoupled=True,
        stream_input="streaming",
    )
    parsed = send_one(target, WorkloadRequest(4, token_ids=(5, 6)))
    expected = [(1,), (2,), (3,), (4,)] if streaming else [(1, 2, 3, 4)]
    assert [chunk.token_ids for chunk in parsed.chunks] == expected


@BOTH
def test_several_ids_in_one_response_are_all_received(endpoint: Endpoint, protocol: Protocol) -> None:
    target = Target(
        endpoint, "core_decoupled", CORE, protocol, True, decoupled=True, stream_input="streaming"
    )
    parsed = send_one(target, WorkloadRequest(8, token_ids=(0, 6)))
    assert [chunk.token_ids for chunk in parsed.chunks] == [(1,), (2, 3), (4, 5, 6), (7,), (8,)]


@pytest.mark.parametrize(
    ("model", "protocol", "streaming", "status"),
    [
        ("ensemble", "grpc", False, "INTERNAL"),
        ("decoupled", "grpc", True, "UNKNOWN"),
        ("ensemble", "http", False, "HTTP 400"),
        ("decoupled", "http", True, "HTTP 400"),
    ],
)
def test_errors_have_the_servers_message(
    endpoint: Endpoint, model: str, protocol: Protocol, streaming: bool, status: str
) -> None:
    target = Target(endpoint, model, protocol=protocol, streaming=streaming, decoupled=streaming)
    load, parsed = send(target, WorkloadRequest(3, "fail: no luck"), WorkloadRequest(3, "fine"))
    failed, fine = load.replies
    assert (failed.status, failed.error, failed.chunks) == (status, "no luck", [])
    assert fine.ok and parsed[0].chunks == () and parsed[1].text == "FINE"


def test_failed_streams_do_the_server_no_harm(tmp_path: Path) -> None:
    """With the header ``triton_grpc_error`` Triton 2.51 logs such a line for each, and may crash."""
    with echo_server(tmp_path) as endpoint:
        target = Target(endpoint, "decoupled", protocol="grpc", streaming=True, decoupled=True)
        load, _ = send(target, *[WorkloadRequest(3, "fail: no luck")] * 20)
        assert [reply.error for reply in load.replies] == ["no luck"] * 20
    assert "HandleCancellation" not in (tmp_path / "server.log").read_text(encoding="utf-8")


@BOTH
def test_an_unknown_model_is_an_error_of_each_request(endpoint: Endpoint, protocol: Protocol) -> None:
    load, _ = send(Target(endpoint, "absent", protocol=protocol), WorkloadRequest(3, "x"))
    (reply,) = load.replies
    assert reply.status == {"grpc": "NOT_FOUND", "http": "HTTP 404"}[protocol]
    assert "absent" in (reply.error or "")


def test_an_error_with_http_status_200_is_an_error(endpoint: Endpoint) -> None:
    """``generate`` answers 200 with an error when a decoupled model gives several responses."""
    load, _ = send(Target(endpoint, "decoupled", protocol="http"), WorkloadRequest(3, "two"))
    assert load.replies[0].status == "HTTP 200" and "exactly 1 response" in (load.replies[0].error or "")


@BOTH
def test_a_request_that_takes_too_long_times_out(endpoint: Endpoint, protocol: Protocol) -> None:
    load, _ = send(
        Target(endpoint, "ensemble", protocol=protocol, timeout_s=0.2), WorkloadRequest(3, "sleep 1.5: x")
    )
    (reply,) = load.replies
    assert reply.status == "DEADLINE_EXCEEDED" and reply.ended_s - reply.sent_s >= 0.2


@BOTH
def test_a_closed_loop_over_either_protocol(endpoint: Endpoint, protocol: Protocol) -> None:
    target = Target(endpoint, "ensemble", protocol=protocol)
    payloads = [encode_request(WorkloadRequest(3, word), target) for word in ("one", "two", "three")]
    load = run_load(ClosedPlan(target, payloads, Clock(), 4, count=50))
    assert [parse_reply(reply, target).text for reply in load.replies] == (["ONE", "TWO", "THREE"] * 17)[:50]


@BOTH
def test_without_a_server_the_load_does_not_start(protocol: Protocol) -> None:
    unreachable = Endpoint("1", "node01", "127.0.0.1", 1, 1, 1, [], 0.0)
    with pytest.raises(NotReady, match="host node01"):
        run_load(OpenPlan(Target(unreachable, "ensemble", protocol=protocol), [b"{}"], Clock(), [0.0]))


@pytest.mark.alone
@BOTH
def test_a_stall_of_the_server_fully_shows_in_the_latency_from_schedule(
    endpoint: Endpoint, protocol: Protocol
) -> None:
    """One request stalls the only instance for 2 s; 39 more fall due meanwhile, 50 ms apart."""
    target = Target(endpoint, "ensemble", protocol=protocol)
    prompts = ["fast", "sleep 2: slow", *["fast"] * 48]
    payloads = [encode_request(WorkloadRequest(4, prompt), target) for prompt in prompts]
    load = run_load(OpenPlan(target, payloads, Clock(), [number / 20 for number in range(50)]))
    assert all(reply.ok for reply in load.replies) and len(load.replies) == 50
    waits_s = [reply.ended_s - reply.due_s for reply in load.replies]
    # The k-th request after the stall began waits for the rest of it: no coordinated omission.
    # A machine with other work to do makes waits longer, never shorter.
    for behind in range(39):
        left_s = 2 - behind * 0.05
        assert left_s - 0.001 <= waits_s[1 + behind] < left_s + 0.5
    assert waits_s[0] < 0.5 and waits_s[-1] < 0.5
    # The server caused the delay: no request was held back until the stall was over.
    assert max(reply.sent_s - reply.due_s for reply in load.replies) < 0.5


_INTERRUPTED = """
import sys
from trtllm_hpc.bench.load.messages import Target, encode_request
from trtllm_hpc.bench.load.loops import OpenPlan
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.workload.request import WorkloadRequest
from trtllm_hpc.runtime.records import Endpoint
target = Target(Endpoint("1", "h", "127.0.0.1", int(sys.argv[1]), int(sys.argv[2]), 1, [], 0.0), "ensemble",
                protocol=sys.argv[3])
texts = ["one", "two", "sleep 2: x", "never"]
payloads = [encode_request(WorkloadRequest(4, text), target) for text in texts]
def count(ended):
    print("answer", flush=True)
load = run_load(OpenPlan(target, payloads, Clock(), [0, 0.05, 0.1, 100]), progress=count)
print([reply.index for reply in load.replies], load.interrupted, flush=True)
"""


@pytest.mark.alone
@BOTH
def test_ctrl_c_ends_the_load_at_once_and_keeps_the_replies(endpoint: Endpoint, protocol: Protocol) -> None:
    ports = str(endpoint.http_port), str(endpoint.grpc_port)
    out, took_s = interrupted(_INTERRUPTED, *ports, protocol)
    assert out == "[0, 1] True\n" and took_s < 1
