from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trtllm_hpc.bench.analysis.slo import parse_slo
from trtllm_hpc.bench.metrics import BY_KEY, METRICS, distribution, figures
from trtllm_hpc.bench.records import WARMUP, NoValue, RequestRecord
from trtllm_hpc.bench.results import ClosedLoop, Distribution, Energy, Figure

from .make import request, sample

# A window of one second. The first was sent before it and ended in it; the last was due in it and ended
# after it; the third failed.
RECORDS = [
    request(-100, -100, 100, phase=WARMUP),
    request(0, 0, 100),
    request(100, 150, 400, tokens_out=20),
    request(200, 200, 500, status="UNAVAILABLE", tokens_out=None),
    request(900, 900, 1400),
]
# Tokens at 100, 200 and 500 ms; the last chunk brings two.
STREAMED = request(0, 50, 600, chunks_ms=[100, 200, 500], chunk_tokens=[1, 1, 2], tokens_out=4)
# Of the same, the first two tokens were reasoning, and two of three prompt tokens were cached.
THOUGHT = replace(STREAMED, first_answer_s=0.5, reasoning_tokens=2, cached_tokens=2)
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def figure(key: str, *args: object, **kwargs: object) -> Figure:
    return BY_KEY[key].of(sample(*args, **kwargs))  # type: ignore[arg-type]


def mean_max_count(key: str, records: list[RequestRecord]) -> tuple[float, float, int]:
    found = figure(key, records)
    assert isinstance(found, Distribution)
    return round(found.mean, 6), round(found.max, 6), found.count


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("asked_rate_per_s", 4),
        ("sent_rate_per_s", 4),
        ("finished_rate_per_s", 3),  # ends at 100, 100 and 400 ms
        ("output_tokens_per_s", 10 + 10 + 20),
        ("total_tokens_per_s", 13 + 13 + 23),
        ("error_share", 0.25),
    ],
)
def test_single_numbers_by_hand(key: str, value: float) -> None:
    assert figure(key, RECORDS) == pytest.approx(value)


@pytest.mark.parametrize(
    ("records", "key", "mean", "most", "count"),
    [
        (RECORDS, "latency_ms", (100 + 300 + 500) / 3, 500, 3),
        (RECORDS, "latency_from_send_ms", (100 + 250 + 500) / 3, 500, 3),
        (RECORDS, "client_lateness_ms", 50 / 4, 50, 4),  # the failed one too
        (RECORDS, "input_tokens", 3, 3, 3),
        (RECORDS, "output_tokens", 40 / 3, 20, 3),
        ([STREAMED], "ttft_ms", 100, 100, 1),
        ([STREAMED], "ttft_from_send_ms", 50, 50, 1),
        ([STREAMED], "tpot_ms", 400 / 3, 400 / 3, 1),
        ([STREAMED], "itl_ms", (100 + 150 + 150) / 3, 150, 3),  # one gap a token, not one a chunk
    ],
)
def test_distributions_by_hand(
    records: list[RequestRecord], key: str, mean: float, most: float, count: int
) -> None:
    assert mean_max_count(key, records) == (round(mean, 6), round(most, 6), count)


def test_the_wait_for_the_first_token_is_not_between_tokens() -> None:
    slow_start = request(0, 0, 5100, chunks_ms=[5000, 5100], tokens_out=2)
    assert mean_max_count("itl_ms", [slow_start]) == (100, 100, 1)
    assert mean_max_count("tpot_ms", [slow_start]) == (100, 100, 1)


def test_tokens_between_are_pooled_and_not_averaged_by_request() -> None:
    # 9 gaps of 10 ms in one request and one of 110 ms in another: the mean of all is 20, of the means 60.
    many = request(0, 0, 100, chunks_ms=[10 * number for number in range(1, 11)])
    stalled = request(0, 0, 200, chunks_ms=[10, 120], tokens_out=2)
    assert mean_max_count("itl_ms", [many, stalled]) == (20, 110, 10)
    assert mean_max_count("tpot_ms", [many, stalled]) == (60, 110, 2)


def test_a_chunk_without_a_token_belongs_to_the_next_gap() -> None:
    record = request(0, 0, 300, chunks_ms=[100, 200, 300], chunk_tokens=[1, 0, 1], tokens_out=2)
    assert mean_max_count("itl_ms", [record]) == (200, 200, 1)


@pytest.mark.parametrize("key", ["ttft_ms", "ttft_from_send_ms", "tpot_ms", "itl_ms"])
def test_what_was_not_streamed_has_no_times_of_tokens(key: str) -> None:
    with pytest.raises(NoValue):
        figure(key, RECORDS)


@pytest.mark.parametrize(("chunks_ms", "tokens"), [([100], [1]), ([100], [4])])
def test_one_chunk_shows_no_time_between_tokens(chunks_ms: list[float], tokens: list[int]) -> None:
    whole = request(0, 0, 100, chunks_ms=chunks_ms, chunk_tokens=tokens, tokens_out=sum(tokens))
    assert mean_max_count("ttft_ms", [whole]) == (100, 100, 1)
    for key in ("tpot_ms", "itl_ms"):
        with pytest.raises(NoValue):
            figure(key, [whole])


def test_tokens_of_a_stream_count_when_they_come() -> None:
    # Of four tokens one comes before the window and two after it.
    across = request(0, 0, 2000, chunks_ms=[400, 1000, 1600], chunk_tokens=[1, 1, 2], tokens_out=4)
    assert figure("output_tokens_per_s", [across], 500, 1500) == pytest.approx(1)
    # Its prompt was worked off at 400 ms.
    assert figure("total_tokens_per_s", [across], 500, 1500) == pytest.approx(1)
    assert figure("total_tokens_per_s", [across], 300, 1300) == pytest.approx(2 + 3)


def test_an_answer_at_the_end_of_the_window_is_in_it_and_one_at_its_start_is_not() -> None:
    assert figure("finished_rate_per_s", [request(0, 0, 1000)]) == 1
    assert figure("finished_rate_per_s", [request(-10, -10, 0, phase=WARMUP)]) == 0


def test_a_closed_loop_has_no_scheduled_rate() -> None:
    with pytest.raises(NoValue):
        figure("asked_rate_per_s", RECORDS, level=ClosedLoop(4))


def test_goodput_counts_requests_that_keep_every_limit() -> None:
    slo = parse_slo("ttft<120ms,latency<700ms")
    late_first = request(0, 0, 600, chunks_ms=[130, 600], tokens_out=2)
    late_end = request(0, 0, 800, chunks_ms=[100, 800], tokens_out=2)
    after = request(600, 600, 1200, chunks_ms=[700, 1200], tokens_out=2)
    failed = request(0, 0, 10, status="UNAVAILABLE")
    records = [STREAMED, late_first, late_end, after, failed]
    assert figure("goodput_per_s", records, slo=slo) == 1  # `after` was good, but came after the window


def test_goodput_has_no_value_without_limits_or_without_what_they_limit() -> None:
    for slo in (None, parse_slo("ttft<1s")):
        with pytest.raises(NoValue):
            figure("goodput_per_s", RECORDS, slo=slo)


def test_figures_without_a_value_are_left_out_and_never_zero() -> None:
    assert figures(sample([])).keys() == {"asked_rate_per_s", "sent_rate_per_s"}
    assert figures(sample(RECORDS, 0, 0)).keys() >= {"latency_ms"}
    assert not figures(sample(RECORDS, 0, 0)).keys() & {"sent_rate_per_s", "finished_rate_per_s"}
    uncounted = [request(0, 0, 100, tokens_out=None), request(0, 0, 100)]
    assert "output_tokens_per_s" not in figures(sample(uncounted))
    no_prompts = [request(0, 0, 100, tokens_in=None)]
    assert "total_tokens_per_s" not in figures(sample(no_prompts))
    assert "output_tokens_per_s" in figures(sample(no_prompts))
    nothing = figures(sample([request(0, 0, 100, status="UNAVAILABLE")]))
    assert nothing["error_share"] == 1 and "finished_rate_per_s" not in nothing


def test_every_figure_of_a_stream_has_a_value() -> None:
    records = [THOUGHT, request(0, 0, 10, status="UNAVAILABLE")]
    assert set(figures(sample(records, slo=parse_slo("ttft<1s"), energy=Energy(1.0)))) == set(BY_KEY)


def test_energy_by_hand() -> None:
    records = [request(0, 0, 500, tokens_out=20), request(100, 100, 900, tokens_out=30)]
    found = figures(sample(records, energy=Energy(100.0)))
    of_energy = {key: value for key, value in found.items() if "energy" in key or "power" in key}
    assert of_energy == {
        "energy_per_output_token_j": 2,
        "energy_per_request_j": 50,
        "power_mean_w": 100,
    }


def test_reasoning_and_cached_prompts_count_where_the_server_says() -> None:
    assert mean_max_count("ttfa_ms", [THOUGHT, STREAMED]) == (500, 500, 1)
    assert mean_max_count("reasoning_tokens", [THOUGHT, STREAMED]) == (2, 2, 1)
    half = replace(THOUGHT, cached_tokens=0)
    assert figure("cached_prompt_share", [THOUGHT, half, STREAMED]) == pytest.approx(1 / 3)


def test_a_distribution_by_hand() -> None:
    assert distribution(range(101)) == Distribution(50, 50, 90, 95, 99, 100, 101)
    assert distribution([0, 1]) == Distribution(0.5, 0.5, 0.9, 0.95, 0.99, 1, 2)
    with pytest.raises(NoValue):
        distribution([])


def test_the_documentation_lists_each_metric() -> None:
    page = DOCS.read_text(encoding="utf-8")
    for metric in METRICS:
        better = {"lower": "lower", "higher": "higher", None: "-"}[metric.better]
        row = (f"`{metric.key}`", metric.label, metric.unit, metric.meaning, metric.formula, better)
        assert f"| {' | '.join(row)} |" in page, metric.key


def test_a_stall_that_also_held_up_the_client_shows_at_full_size_from_schedule() -> None:
    # Ten requests are due in a second; the server stands still for 2 s, and the client could send no more.
    stalled = [request(due, 2000, 2010) for due in range(0, 1000, 100)]
    assert mean_max_count("latency_ms", stalled) == (1560, 2010, 10)
    assert mean_max_count("latency_from_send_ms", stalled) == (10, 10, 10)
