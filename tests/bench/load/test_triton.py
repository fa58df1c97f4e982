"""Every protocol and kind of model, against a real tritonserver."""

from __future__ import annotations

import itertools
from typing import Literal

import pytest

from tests.bench.models import CORE, LLM_API
from trtllm_hpc.bench.load.loops import LoadResult, OpenPlan
from trtllm_hpc.bench.load.messages import ParsedReply, Target, encode_request, parse_reply
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.workload.request import WorkloadRequest
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
