"""Parameters of ``config.pbtxt`` that the server reads by itself."""

from __future__ import annotations

import pytest

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.reference.engine_config import ServeSettings


def test_what_is_left_out_has_its_default() -> None:
    assert ServeSettings.from_parameters({"max_queue_size": " "}) == ServeSettings()
    read = ServeSettings.from_parameters({"max_queue_size": "7", "max_tokens_in_paged_kv_cache": "640"})
    assert (read.max_queue_size, read.max_tokens_in_paged_kv_cache) == (7, 640)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("max_queue_size", "ten", "'ten', which is not a number"),
        ("max_queue_size", "-1", "must be 0 or more"),
        ("stats_check_period_ms", "0", "must be 1 or more"),
        ("cancellation_check_period_ms", "0", "must be 1 or more"),
        ("kv_cache_free_gpu_mem_fraction", "1.5", "at most 1"),
        ("kv_cache_free_gpu_mem_fraction", "nan", "above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, text: str, sentence: str) -> None:
    with pytest.raises(StartFailed, match=name) as refusal:
        ServeSettings.from_parameters({name: text})
    assert sentence in str(refusal.value)
