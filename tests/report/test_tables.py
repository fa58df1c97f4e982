from __future__ import annotations

from rich.table import Table

from trtllm_hpc.bench.benchmark import Settings, summarise
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.report.log_table import size_words
from trtllm_hpc.report.tables import as_text, benchmark_table
from trtllm_hpc.runtime.records import Endpoint

ENDPOINT = Endpoint("7", "sbx-n1", "10.0.0.1", 1, 2, 3, ["ensemble"], 1.0)


def text(records: list[RequestRecord]) -> str:
    settings = Settings(requests=len(records), rate_per_s=4.0, max_tokens=16)
    return as_text(benchmark_table(summarise(settings, ENDPOINT, 1.0, records)))


def test_the_benchmark_table_as_a_whole() -> None:
    records = [
        RequestRecord(0, 0.0, 0.001, 0.1, "ok", None, 5, 16, "model"),
        RequestRecord(1, 0.25, 0.251, 0.5, "ok", None, 5, 16, "model"),
    ]
    expected = """\
ensemble on sbx-n1: constant arrivals, up to 16 output tokens a request

requests   failed   asked (1/s)   sent (1/s)   finished (1/s)   output (tokens)   output (tokens/s)
───────────────────────────────────────────────────────────────────────────────────────────────────
       2        0          4.00         4.00             4.00                32                64.0

                        mean (ms)    p50 (ms)    p90 (ms)    p99 (ms)    max (ms)
─────────────────────────────────────────────────────────────────────────────────
latency from schedule       175.0       175.0       235.0       248.5       250.0
latency from send           174.0       174.0       234.0       247.5       249.0
client's own delay            1.0         1.0         1.0         1.0         1.0
"""
    assert text(records) == expected


def test_figures_without_a_value_are_dashes_and_the_verdict_is_told() -> None:
    table = text([RequestRecord(0, 0.0, 0.0, 1.0, "UNAVAILABLE", "[bold]gone")])
    assert "not valid: No request was answered." in table
    row = next(line for line in table.splitlines() if line.startswith("latency from send"))
    assert row.split() == ["latency", "from", "send", "-", "-", "-", "-", "-"]


def test_text_has_no_colours_and_no_trailing_spaces() -> None:
    table = Table("a")
    table.add_row("[red]x[/red]")
    assert "\x1b" not in as_text(table) and not any(
        line != line.rstrip() for line in as_text(table).split("\n")
    )


def test_sizes_in_words() -> None:
    assert [size_words(size) for size in (None, 0, 1023, 1536, 5 << 20, 3 << 30)] == [
        None,
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 GiB",
    ]
