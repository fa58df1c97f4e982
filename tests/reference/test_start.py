"""What a rank reads when it starts, and what it says."""

from __future__ import annotations

import re

import pytest

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.reference.engine_config import ServeSettings

from .servers import World


@pytest.mark.triton
def test_the_log_says_how_long_weights_took(alone: World) -> None:
    assert re.search(r"rank 0: weights loaded in \d+\.\d s", alone.log(0))


def test_what_is_left_out_has_its_default() -> None:
    assert ServeSettings.from_parameters({"max_queue_size": " "}) == ServeSettings()
    read = ServeSettings.from_parameters({"max_queue_size": "7", "max_tokens_in_paged_kv_cache": "640"})
    assert (read.max_queue_size, read.max_tokens_in_paged_kv_cache) == (7, 640)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("max_queue_size", "ten", "'ten'; it must be a number from 0 on"),
        ("max_tokens_in_paged_kv_cache", "-1", "'-1'; it must be a number"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, text: str, sentence: str) -> None:
    with pytest.raises(StartFailed, match=name) as refusal:
        ServeSettings.from_parameters({name: text})
    assert sentence in str(refusal.value)
