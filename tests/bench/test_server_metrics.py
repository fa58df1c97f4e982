from __future__ import annotations

import re
import socket
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.bench.metrics_port import endpoint_at, page, serving
from tests.waiting import eventually
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.server_metrics import (
    SERIES,
    Page,
    ServerSample,
    describe,
    fetch_page,
    read_samples,
    sampled,
    since_start,
    values,
    write_samples,
)
from trtllm_hpc.errors import RequestFailed

MONOTONIC = Clock(zero=0.0)


# What a page says -----------------------------------------------------------------------


def test_gauges_are_those_of_the_page_and_means_and_rates_lie_between_two() -> None:
    before, now = (
        Page(page(finished=10, queue_us=9_000, tokens=50)),
        Page(page(finished=20, queue_us=49_000, tokens=250)),
    )
    assert values(before, None, 0.0) == {"kv_used_share": 0.25}
    found = values(now, before, 2.0)
    assert found["finished_per_s[tensorrt_llm]"] == 5  # 10 in 2 s
    assert found["queue_ms[tensorrt_llm]"] == 4  # 40 ms for 10 requests
    assert found["output_tokens_per_s"] == 100  # 200 in 2 s
    assert found["failed_per_s[tensorrt_llm]"] == 0
    # A server that began anew has no growth.
    anew = values(Page(page(finished=3)), before, 1.0)
    assert "finished_per_s[tensorrt_llm]" not in anew and anew["kv_used_share"] == 0.25


def test_one_page_alone_has_counts_and_means_since_the_start() -> None:
    found = since_start(Page(page(finished=10, queue_us=50_000, tokens=70)))
    assert (found["finished[tensorrt_llm]"], found["failed[tensorrt_llm]"]) == (10, 3)
    assert (found["output_tokens"], found["queue_ms[tensorrt_llm]"]) == (70, 5)
    assert (describe("output_tokens").unit, describe("finished[tensorrt_llm]").unit) == ("tokens", "")
    nothing_yet = since_start(Page(page()))
    assert nothing_yet["finished[tensorrt_llm]"] == 0 and "queue_ms[tensorrt_llm]" not in nothing_yet


def test_two_engines_have_keys_of_their_own() -> None:
    line = 'nv_trt_llm_request_metrics{{model="{}",version="1",request_type="active"}} {}\n'
    both = Page(line.format("context", 3) + line.format("generation", 5))
    assert values(both, None, 0.0) == {"requests_active[context]": 3, "requests_active[generation]": 5}
    assert describe("requests_active[context]").model == "context"


def test_each_series_is_described_and_documented() -> None:
    for series in SERIES:
        assert describe(series.key) == series and series.label and series.unit
    share = describe("queue_ms[a model]")
    assert (share.label, share.unit, share.model) == ("time in the queue", "ms", "a model")
    assert describe("of a later version").label == "of a later version"
    document = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
    rows = [f"| `{it.key}` | {it.label} | {it.unit} | {it.of} | {it.kind} |" for it in SERIES]
    assert "\n".join(["|---|---|---|---|---|", *rows, "", ""]) in document.read_text()


@pytest.mark.parametrize("kind", ["Triton", "another server"])
def test_figures_of_instances_are_added_up(kind: str) -> None:
    pages = [page(finished=3), page(finished=4)]
    with serving(lambda number: (200, pages[number])) as endpoint:
        both = replace(endpoint, instances=2)
        if kind != "Triton":
            url = f"http://{endpoint.address}:{endpoint.metrics_port}/v1"
            both = replace(both, http_port=0, grpc_port=0, openai_url=url)
        found = since_start(fetch_page(both))
    assert found["finished[tensorrt_llm]"] == 7 and found["kv_used_share"] == 0.25


# Other servers --------------------------------------------------------------------------

STEPS = (
    '[{"iter": 6, "numActiveRequests": 9}, {"iter": 7, "numActiveRequests": 3, "numQueuedRequests": 2,'
    ' "kvCacheStats": {"maxNumBlocks": 40, "usedNumBlocks": 10}}]'
)
PROMETHEUS = (
    'trtllm_generation_tokens_total{{model_name="m"}} {tokens}\n'
    'trtllm_request_success_total{{model_name="m",finished_reason="stop"}} {done}\n'
    'trtllm_request_success_total{{model_name="m",finished_reason="length"}} 1.0\n'
    'trtllm_request_queue_time_seconds_sum{{model_name="m"}} {queue}\n'
    'trtllm_request_queue_time_seconds_count{{model_name="m"}} {done}\n'
    'trtllm_num_requests_running{{model_name="m"}} 4.0\n'
)


def test_the_statistics_of_trtllm_serve_are_those_of_its_last_step() -> None:
    assert values(Page(f"{STEPS}\n"), None, 0.0) == {
        "requests_active": 3, "requests_waiting": 2, "kv_used_share": 0.25,
    }  # fmt: skip
    assert values(Page(STEPS.replace('"iter": 7', '"iter": 27')), Page(STEPS), 2.0)["iterations_per_s"] == 10
    assert since_start(Page("[]")) == {}
    with pytest.raises(ValueError, match="not a list of statistics"):
        Page("[1]")


def test_its_page_for_prometheus_has_tokens_requests_and_their_times() -> None:
    before = Page(f"[]\n{PROMETHEUS.format(tokens=50.0, done=1.0, queue=0.5)}")
    now = Page(f"{STEPS}\n{PROMETHEUS.format(tokens=250.0, done=5.0, queue=0.7)}")
    found = values(now, before, 2.0)
    assert (found["output_tokens_per_s"], found["finished_per_s[m]"]) == (100, 2)
    assert found["queue_ms[m]"] == pytest.approx(50)  # 0.2 s for 4 requests
    assert found["requests_active"] == 3  # by the statistics, where there are some
    assert values(before, None, 0.0)["requests_active"] == 4  # another reader has taken them away


VLLM = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} 5.0
vllm:num_requests_waiting{{engine="0",model_name="m"}} 1.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.2
vllm:kv_cache_usage_perc{{engine="1",model_name="m"}} 0.4
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}
vllm:prefix_cache_queries_total{{engine="0",model_name="m"}} {asked}
vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} {found}
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} {done}
vllm:request_queue_time_seconds_sum{{engine="0",model_name="m"}} {queue}
vllm:request_queue_time_seconds_count{{engine="0",model_name="m"}} {done}
"""
SGLANG = """sglang:num_running_reqs{{model_name="m"}} 5.0
sglang:num_queue_reqs{{model_name="m"}} 1.0
sglang:token_usage{{model_name="m"}} 0.3
sglang:cache_hit_rate{{model_name="m"}} 0.75
sglang:generation_tokens_total{{model_name="m"}} {tokens}
sglang:num_requests_total{{model_name="m"}} {done}
sglang:queue_time_seconds_sum{{model_name="m"}} {queue}
sglang:queue_time_seconds_count{{model_name="m"}} {done}
"""


@pytest.mark.parametrize("text", [VLLM, SGLANG])
def test_vllm_and_sglang_have_the_same_figures(text: str) -> None:
    before = Page(text.format(tokens=50, done=1, queue=0.5, asked=100, found=10))
    now = Page(text.format(tokens=250, done=5, queue=0.7, asked=200, found=85))
    assert values(now, before, 2.0) == pytest.approx({
        "requests_active": 5, "requests_waiting": 1, "kv_used_share": 0.3, "kv_hit_share": 0.75,
        "output_tokens_per_s": 100, "finished_per_s[m]": 2, "queue_ms[m]": 50,
    })  # fmt: skip


# Sampling -------------------------------------------------------------------------------


def test_samples_stand_at_the_middle_of_their_get() -> None:
    def slow(number: int) -> tuple[int, str]:
        time.sleep(0.05)
        return 200, page(finished=number)

    begun = time.monotonic()
    with serving(slow) as endpoint, sampled(endpoint, MONOTONIC, 0.01) as found:
        assert eventually(lambda: len(found) >= 2)
    ended = time.monotonic()
    assert found.warning is None
    for sample in found.samples:
        assert sample.within_s >= 0.025
        assert begun <= sample.time_s - sample.within_s <= sample.time_s + sample.within_s <= ended
    first, second = found.samples[:2]
    gap_s = second.time_s - first.time_s
    assert second.values["finished_per_s[tensorrt_llm]"] == pytest.approx(1 / gap_s)


def test_the_last_look_is_at_the_end_and_no_moment_after_another() -> None:
    with serving(lambda number: (200, page(finished=number))) as endpoint:
        with sampled(endpoint, MONOTONIC, 60.0, max_looks=2) as found:
            assert eventually(lambda: len(found))
            ended = time.monotonic()
        assert [sample.time_s > ended for sample in found.samples] == [False, True]
        with sampled(endpoint, MONOTONIC, 0.2) as found:
            assert eventually(lambda: len(found) >= 3)
    times = [sample.time_s for sample in found.samples]
    # On a slow machine the end may come so late after a look that the last one is one more.
    assert len(times) >= 3 and min(late - early for early, late in pairwise(times)) > 0.1


def test_metrics_that_cannot_be_read_are_one_warning() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = endpoint_at(taken.getsockname()[1])
        with sampled(nobody, MONOTONIC, 0.01) as never:
            time.sleep(0.05)
        with pytest.raises(RequestFailed, match=r"127\.0\.0\.1:\d+/metrics could not be read: Connection"):
            fetch_page(nobody)
    assert never.samples == [] and "could not be read at any time (Connection refused)." in (
        never.warning or ""
    )
    with (
        serving(lambda number: (500, "") if number == 1 else (200, page())) as endpoint,
        sampled(endpoint, MONOTONIC, 0.01) as sometimes,
    ):
        assert eventually(lambda: len(sometimes) >= 3)
    assert re.search(r"could not be read 1 of .* \(HTTP 500", sometimes.warning or "")
    with serving(lambda number: (200, "<html>a login page</html>")) as endpoint:
        with sampled(endpoint, MONOTONIC, 0.01) as other:
            time.sleep(0.03)
        with pytest.raises(RequestFailed, match="could not be read"):
            fetch_page(endpoint)
    assert other.samples == [] and "not a page of metrics" in (other.warning or "")


def test_samples_are_read_as_they_were_written(tmp_path: Path) -> None:
    samples = [ServerSample(0.5, 0.001, {"queue_ms[a\u2028 model]": 4.0}), ServerSample(1.0, 0.002, {})]
    write_samples(tmp_path / "of.metrics.jsonl", samples)
    assert read_samples(tmp_path / "of.metrics.jsonl") == samples
    assert read_samples(tmp_path / "none.metrics.jsonl") == []
