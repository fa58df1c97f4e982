"""How long the ranks of a server load, and what they do now, in words."""

from __future__ import annotations

import time
from statistics import median_low

from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.runtime.blame import rank_name
from trtllm_hpc.runtime.loading import TABLE


def load_line(run: RunSnapshot) -> str:
    """Return the seconds of each phase that logs show, on its slowest rank, named if it differs much."""
    records = [record for step in run.serve_steps for record in run.ranks(step)]
    parts = []
    for phase, (word, _) in TABLE["phases"].items():
        if seen := sorted((it.load_s[phase], it.rank, it.step) for it in records if phase in it.load_s):
            longest_s, rank, step = seen[-1]
            usual_s = median_low(seconds for seconds, *_ in seen)
            differs = longest_s > max(1.5 * usual_s, usual_s + 5)
            name = f" ({rank_name(run.ranks(step), step, rank)}; median {_text(usual_s)})" if differs else ""
            parts.append(f"{word} {_text(longest_s)}{name}")
    return ", ".join(parts)


def loading_now(run: RunSnapshot) -> str:
    """Return, to be appended, what the rank does that has been in its phase longest, and for how long."""
    records = (record for step in run.serve_steps for record in run.ranks(step) if record.ended_at is None)
    busy = sorted((it.loading_since, it.rank, it.step, it.loading) for it in records if it.loading)
    if not busy:
        return ""
    since, rank, step, phase = busy[0]
    name = f" ({rank_name(run.ranks(step), step, rank)})" if len({it[-1] for it in busy}) > 1 else ""
    return f", {TABLE['phases'][phase][1]}, {_text(time.time() - since)}{name}"


def _text(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 1 else "under 1 s"
