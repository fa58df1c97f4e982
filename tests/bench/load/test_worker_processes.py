"""A load shared by several processes."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.bench.load.grpc_server import grpc_server
from tests.bench.load.observe import interrupted, outstanding
from trtllm_hpc.bench.load.loops import ClosedPlan, OpenPlan
from trtllm_hpc.bench.load.messages import LoadReply, Target
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock

pytestmark = pytest.mark.long  # each process takes a second to start


def test_an_open_loop_keeps_times_and_order() -> None:
    payloads = [b"%d" % number for number in range(31)]
    counted: list[bool] = []

    def count(ended: LoadReply) -> None:
        counted.append(ended.ok and ended.latency_s > 0)

    with grpc_server() as ready:
        due_s = [number / 100 for number in range(31)]
        load = run_load(OpenPlan(Target(ready, "m"), payloads, Clock(), due_s), processes=3, progress=count)
    assert sorted(reply.index for reply in load.replies) == list(range(31))
    assert counted == [True] * 31
    for reply in load.replies:
        assert reply.chunks[0][1] == payloads[reply.index]
        assert reply.due_s == pytest.approx(load.start_s + due_s[reply.index])
        assert reply.sent_s >= reply.due_s
    sent = [reply.sent_s for reply in load.replies]
    assert sent == sorted(sent) and load.client.processes == 3
    assert 0 < load.client.busiest_share <= load.client.cpu_s / load.client.wall_s * 1.5


def test_a_closed_loop_is_shared_by_slots_and_count() -> None:
    with grpc_server() as ready:
        payloads = [b"sleep 0.01", b"b", b"c"]
        load = run_load(
            ClosedPlan(Target(ready, "m"), payloads, Clock(), 5, count=41, first_index=9), processes=2
        )
    assert len(load.replies) == 41 and all(reply.ok for reply in load.replies)
    assert all(reply.chunks[0][1] == payloads[reply.index - 9] for reply in load.replies)
    assert set(Counter(reply.index for reply in load.replies)) == {9, 10, 11}
    assert max(outstanding(load.replies)) <= 5
    assert load.saturated_until_s is not None, "the second process, which never sleeps, ends first"
    assert load.start_s < load.saturated_until_s < max(reply.due_s for reply in load.replies)


_INTERRUPTED = """
import sys
from tests.bench.load.grpc_server import endpoint
from trtllm_hpc.bench.load.messages import Target
from trtllm_hpc.bench.load.loops import OpenPlan
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
def count(ended):
    print("answer", flush=True)
if __name__ == "__main__":
    plan = OpenPlan(Target(endpoint(int(sys.argv[1])), "m"), [b"x"] * 4, Clock(), [0, 0.05, 100, 101])
    load = run_load(plan, progress=count, processes=2)
    print(len(load.replies), load.interrupted, flush=True)
"""


def test_ctrl_c_keeps_the_replies_and_leaves_no_process() -> None:
    # Workers have the pipe open, too: it only ends when all are gone.
    with grpc_server() as ready:
        assert interrupted(_INTERRUPTED, str(ready.grpc_port))[0] == "2 True\n"
