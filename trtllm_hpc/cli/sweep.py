"""``trtllm-hpc sweep``: run the variants of a job file, and compare them."""

from __future__ import annotations

import click

from trtllm_hpc.cli.default_group import DefaultGroup

_COMMANDS: dict[str, str] = {
    "run": "Submit every variant of a job file; 'run' may be left out.",
    "list": "List the sweeps.",
    "status": "Show the state of each variant.",
    "watch": "Follow a sweep to its end.",
    "cancel": "Cancel a sweep, or some of its variants.",
    "resume": "Submit what has not completed.",
    "report": "Write the frontier and the best variant as one HTML file.",
}
"""The commands with their lines in ``--help``, which imports only the first."""
_SHARED = dict.fromkeys(("list", "status", "watch", "cancel", "resume", "report"), "saved")


@click.group("sweep", cls=DefaultGroup, module="trtllm_hpc.cli.sweep_", lines=_COMMANDS, shared=_SHARED)
def command() -> None:
    """Run the variants of JOB: every combination of some keys' values.

    The variants stand in the job file's section `sweep`, or in --sweep. All are
    checked before anything is queued. Each variant gets a run folder of its own
    in RUNS/sweeps/ID/, and jobs of its own, which Slurm starts without this
    command. A variant that fails stops no other one.

    \b
    Examples:
      trtllm-hpc sweep job.yaml --sweep engine.tensor_parallel=2,4,8
      trtllm-hpc sweep job.yaml --sweep engine.max_batch_size=64,256 --max-running 2 --wait
      trtllm-hpc sweep job.yaml --allocation one
      trtllm-hpc sweep job.yaml --check
      trtllm-hpc sweep status latest
    """
