"""Submitting the variants of a sweep that have not completed: all at first, later what is missing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.paths import RunPaths, locked, read_json
from trtllm_hpc.runs.listing import listed_runs
from trtllm_hpc.runs.resume import prepare_rest, resume_run
from trtllm_hpc.runs.status import RunState
from trtllm_hpc.runs.submit import Turn, refuse_cancelled, sole_command, submit_stages
from trtllm_hpc.scheduler.submission_record import SubmissionRecord, read_submission
from trtllm_hpc.sweeps.allocation import submit_in_one
from trtllm_hpc.sweeps.record import SweepPaths, SweepRecord

OnProgress = Callable[[str, int, int], object]
"""Receives the name of a variant that was submitted, its number, and how many there are to submit."""


@contextmanager
def alone(paths: SweepPaths) -> Iterator[None]:
    """Keep other processes from submitting or cancelling variants. Raises SubmissionError if one is at it."""
    message = f"Another process submits or cancels variants of {paths.sweep_id} right now."
    with locked(paths.lock, SubmissionError(message, hint=f"trtllm-hpc sweep status {paths.sweep_id}")):
        yield


def submit_variants(
    paths: SweepPaths,
    record: SweepRecord,
    *,
    only: Collection[str] = (),
    on_progress: OnProgress = lambda name, number, count: None,
) -> int:
    """Submit every variant that has not completed and is not in the queue; return how many these were.

    Args:
        only: names of variants; without any, all that are not refused.

    Raises:
        SubmissionError: Slurm refused a script, or does not answer. What was submitted before stays so, and
            the same call goes on.
    """
    with alone(paths):
        rows = {row.run_id: row for row in listed_runs(paths.folder, warn=_refuse_silence)}
        names = [it.name for it in record.variants if not it.refused and (not only or it.name in only)]
        live = [paths.run(it.name) for it in record.variants if it.name in rows and rows[it.name].live]
        left = [name for name in names if name in rows and not rows[name].live]
        left = [name for name in left if rows[name].state is not RunState.COMPLETED]
        for run in map(paths.run, left):
            if read_submission(run) is None:
                run.stop_request.unlink(missing_ok=True)  # of a cancel before this command
        if record.allocation == "one":
            _submit_in_one(paths, record, left)
            return len(left)
        queue = _Queue(record.max_running, live)
        for number, name in enumerate(left, 1):
            try:
                queue.submit(paths.run(name))
            except (SubmissionError, OSError) as cause:
                error = cause if isinstance(cause, SubmissionError) else SubmissionError(str(cause))
                error.hint = f"once that is mended, trtllm-hpc sweep resume {paths.sweep_id} submits the rest"
                error.message += f"\n{number - 1} of {len(left)} variants were submitted before, and stay so."
                raise error from None
            on_progress(name, number, len(left))
    return len(left)


def _submit_in_one(paths: SweepPaths, record: SweepRecord, names: Sequence[str]) -> None:
    with ExitStack() as held:
        for run in map(paths.run, names):
            held.enter_context(sole_command(run))
            refuse_cancelled(run) if read_submission(run) is None else prepare_rest(run)
        if names:
            submit_in_one(paths, record, names)


def _refuse_silence(sentence: str) -> None:
    raise SubmissionError(sentence, hint="the same command again, once Slurm answers", transient=True)


class _Queue:
    """Submits runs so that at most ``lanes`` of them run at once.

    Each run is in a lane, and its first job waits (``afterany``) for all jobs of the run before it there. No
    process has to live for that. Builds of the same engine wait for each other, too: the first one builds,
    and the others find it in the cache.
    """

    def __init__(self, lanes: int | None, live: Collection[RunPaths]) -> None:
        self._lanes = lanes
        self._last: dict[int, list[str]] = {}
        self._length = Counter[int]()
        self._builds: dict[str, str] = {}
        records = [(run, found) for run in live if (found := read_submission(run)) is not None]
        for run, found in sorted(
            records, key=lambda it: max((job.submitted_at for job in it[1].stages.values()), default=0.0)
        ):
            self._remember(run, found)

    def submit(self, run: RunPaths) -> None:
        """Submit a run that was only rendered, or what is left of it. Raises SubmissionError."""
        turn = self._turn(run)
        if read_submission(run) is None:
            with sole_command(run):
                self._remember(run, submit_stages(run, turn=turn))
        else:
            self._remember(run, resume_run(run, turn))

    def _turn(self, run: RunPaths) -> Turn:
        lane = min(range(self._lanes), key=lambda it: self._length[it]) if self._lanes else 0
        before = self._last.get(lane, []) if self._lanes else []
        builder = self._builds.get(_engine(run) or "")
        waits = [*before, *([builder] if builder and builder not in before else [])]
        return Turn(lane, tuple(f"afterany:{job}" for job in waits))

    def _remember(self, run: RunPaths, record: SubmissionRecord) -> None:
        lane = record.lane or 0
        self._last[lane] = [job.job_id for job in record.stages.values()]
        self._length[lane] += 1
        engine, build = _engine(run), record.stages.get("build")
        if engine is not None and build is not None:
            self._builds.setdefault(engine, build.job_id)


def _engine(run: RunPaths) -> str | None:
    """Return what the engine of a run depends on, as text; ``None`` without a build."""
    recipe = read_json(run.build_recipe)
    if recipe is None:
        return None
    return json.dumps(
        [recipe.get(key) for key in ("model_path", "steps", "tensorrt_llm", "compute_capability")]
    )
