"""What a rank says when it starts."""

from __future__ import annotations

import re

import pytest

from .servers import World


@pytest.mark.triton
def test_the_log_says_how_long_weights_took(alone: World) -> None:
    assert re.search(r"rank 0: weights loaded in \d+\.\d s", alone.log(0))
