"""How a rank may end that was asked to."""

from __future__ import annotations

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import RankRecord


def ended_when_asked(run: RunPaths, rank: int) -> bool:
    """Whether the rank's server ended because somebody asked it to, and orderly.

    Triton 2.51 now and then holds a model for a request that it has lost, and with nothing left to do
    ends by its own exit timeout, with exit code 1. It looks like what
    https://github.com/triton-inference-server/server/pull/8078 mended;
    see docs/explanation/decisions/lifecycle.md.
    """
    record = RankRecord.read(run.rank_record("serve", rank))
    if record is None or not record.stopped_by:
        return False
    log = run.rank_log("serve", rank).read_text(errors="replace")
    gave_up = "Timeout 0: Found 1 live models and 0 in-flight" in log and "Exit timeout expired" in log
    return record.exit_code == (1 if gave_up else 0)
