"""How many inputs a fuzz test tries."""

from __future__ import annotations

import os


def examples(count: int) -> int:
    """Return ``count`` with ``make test-thorough``, else a quarter: each run draws others."""
    return count if "TRTLLM_HPC_TEST_THOROUGH" in os.environ else count // 4
