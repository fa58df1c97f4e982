from __future__ import annotations

import pytest

from trtllm_hpc.cli.metrics import in_unit, server_text


def test_the_table_as_a_whole() -> None:
    values = {
        "requests_active": 3.0,
        "kv_used_share": 0.625,
        "memory_gpu_bytes": 3 * 2**30,
        "output_tokens_per_s": 812.5,
        "finished_per_s[ensemble]": 4.0,
        "finished_per_s[tensorrt_llm]": 4.25,
        "pending[tensorrt_llm]": 2.0,
        "queue_ms[tensorrt_llm]": 12.34,
        "cpu_share": 0.5,
    }
    assert server_text(values).splitlines() == [
        "server                                  now",
        "───────────────────────────────────────────",
        "requests in the engine                    3",
        "KV cache in use                        62 %",
        "GPU memory of the engine            3.0 GiB",
        "tokens of finished answers   812.5 tokens/s",
        "CPU of the host                        50 %",
        "",
        "model          finished   pending     queue",
        "───────────────────────────────────────────",
        "ensemble          4.0/s         -         -",
        "tensorrt_llm      4.2/s         2   12.3 ms",
    ]


def test_a_backend_without_metrics_is_reported() -> None:
    assert "shows nothing of its engine" in server_text({"pending[tensorrt_llm]": 0.0})
    assert "shows nothing of its engine" not in server_text({"requests_active": 0.0})


def test_engines_of_two_models_are_told_apart() -> None:
    text = server_text({"requests_active[context]": 1.0, "requests_active[generation]": 2.0})
    assert "requests in the engine (context)" in text and "requests in the engine (generation)" in text


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.1, "share", "10 %"),
        (250.4, "ms", "250 ms"),
        (12.0, "blocks", "12"),
        (64.0, "tokens", "64 tokens"),
        (1.5, "GPUs", "1.5"),
        (310.0, "W", "310 W"),
    ],
)
def test_figures_are_told_in_their_unit(value: float, unit: str, words: str) -> None:
    assert in_unit(value, unit) == words
