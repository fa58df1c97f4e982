"""How the variants of a sweep are submitted, cancelled and resumed; a fake behaves as Slurm does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scheduler.fake_slurm import FakeSlurm
from trtllm_hpc.api.sweep import Sweep, sweep
from trtllm_hpc.errors import ConfigError, ExitCode, RunNotFound, SubmissionError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import add_event
from trtllm_hpc.sweeps.submit import alone

CLUSTER = "name: here\npartition: batch\ngpus_per_node: 8\nnode_local_folders: []\n"
Vary = dict[str, list[object]]
Make = Callable[..., Sweep]
THREE: Vary = {"engine.max_batch_size": [4, 8, 16]}


@pytest.fixture
def make(fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Submit a sweep of the small model; its runs lie in the test's folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER)

    def made(vary: Vary, *settings: str, skip_refused: bool = False) -> Sweep:
        return sweep(
            "tiny-llama-1rank", cluster, settings, tmp_path / "runs", vary=vary, skip_refused=skip_refused
        )

    return made


def chains(fake_slurm: FakeSlurm) -> list[list[tuple[str, str | None]]]:
    """Return stage and dependency of each job, by the run that it is of, in the order of submission."""
    runs: dict[Path, list[tuple[str, str | None]]] = {}
    for job in fake_slurm.jobs.values():
        script = Path(job["script"])
        runs.setdefault(script.parent, []).append((script.stem, job["dependency"]))
    return list(runs.values())


def first_conditions(fake_slurm: FakeSlurm) -> list[str | None]:
    """Return what the first job of each chain waits for."""
    return [chain[0][1] for chain in chains(fake_slurm)]


def end_chain(fake_slurm: FakeSlurm, run: RunPaths, state: str = "COMPLETED") -> None:
    """End every job of a run."""
    for job, facts in fake_slurm.jobs.items():
        if Path(facts["script"]).is_relative_to(run.folder):
            fake_slurm.set(job, state, exit="0:0" if state == "COMPLETED" else "1:0")


def test_every_variant_is_a_run_in_the_folder_of_the_sweep(make: Make, fake_slurm: FakeSlurm) -> None:
    made = make(THREE)
    assert [*made.runs] == ["bs4", "bs8", "bs16"]
    assert made.paths.folder.parent.name == "sweeps"
    assert [[stage for stage, _ in chain] for chain in chains(fake_slurm)] == [
        ["build", "serve", "companion"]
    ] * 3
    assert first_conditions(fake_slurm) == [None] * 3
    assert [it.state for it in made.status.variants] == ["pending"] * 3
    assert made.runs["bs8"].job.engine.max_batch_size == 8


def test_no_more_chains_run_than_the_user_wants(make: Make, fake_slurm: FakeSlurm) -> None:
    make({"engine.max_batch_size": [1, 2, 3, 4, 5]}, "sweep.max_running=2")
    waits = [
        set(re.findall(r"afterany:(\d+)", condition or "")) for condition in first_conditions(fake_slurm)
    ]
    # Jobs 101 to 103 are the first run's, 104 to 106 the second one's, and so on.
    assert waits == [set(), set(), {"101", "102", "103"}, {"104", "105", "106"}, {"107", "108", "109"}]


def test_what_is_resumed_waits_in_its_lane_too(make: Make, fake_slurm: FakeSlurm) -> None:
    made = make({"engine.max_batch_size": [1, 2, 3, 4]}, "sweep.max_running=2")
    end_chain(fake_slurm, made.paths.run("bs1"), "FAILED")  # the third run follows it
    assert made.resume() == 1
    waits = set(re.findall(r"afterany:(\d+)", list(fake_slurm.jobs.values())[12]["dependency"]))
    assert waits == {"107", "108", "109"}


def test_an_engine_that_two_variants_need_is_built_once(make: Make, fake_slurm: FakeSlurm) -> None:
    make({"engine.max_batch_size": [4, 8], "companion.request.max_tokens": [8, 9, 10]})
    first = {4: "101", 8: "110"}
    expected = [None, *[f"afterany:{first[4]}"] * 2, None, *[f"afterany:{first[8]}"] * 2]
    assert first_conditions(fake_slurm) == expected


def test_a_rule_that_a_variant_breaks_refuses_all_and_names_it(make: Make, fake_slurm: FakeSlurm) -> None:
    vary: Vary = {"engine.max_batch_size": [4, 0], "serve.keep_running": [False, True]}
    with pytest.raises(ConfigError) as caught:
        make(vary)
    text = str(caught.value)
    assert "must be at least 1, not 0 (in bs0-no-keep-running, bs0-keep-running)" in text
    assert "(in bs4-keep-running)" in text and "--skip-refused" in text
    assert not fake_slurm.jobs


def test_the_others_can_be_submitted_without_it(make: Make, fake_slurm: FakeSlurm) -> None:
    made = make({"engine.max_batch_size": [4, 0]}, skip_refused=True)
    assert [(it.name, it.state) for it in made.status.variants] == [("bs4", "pending"), ("bs0", "refused")]
    assert "at least 1" in (made.status.variants[1].sentence or "")
    end_chain(fake_slurm, made.paths.run("bs4"))
    status = made.status
    assert status.completed and status.settled and status.exit_code == ExitCode.OK
    with pytest.raises(ConfigError):
        make({"engine.max_batch_size": [0, -1]}, skip_refused=True)


def test_resume_submits_what_has_not_completed(make: Make, fake_slurm: FakeSlurm) -> None:
    made = make(THREE)
    end_chain(fake_slurm, made.paths.run("bs4"))
    end_chain(fake_slurm, made.paths.run("bs8"), "FAILED")
    status = made.status
    assert [it.state for it in status.variants] == ["completed", "failed", "pending"]
    assert not status.settled and status.variants[1].sentence and status.exit_code == ExitCode.BUILD
    assert made.resume() == 1
    assert [stage for stage, _ in chains(fake_slurm)[1][3:]] == ["build", "serve", "companion"]
    assert made.resume() == 0


def test_what_slurm_refuses_half_way_can_be_submitted_later(make: Make, fake_slurm: FakeSlurm) -> None:
    refused = "sbatch: error: QOSMaxSubmitJobPerUserLimit"
    for words in (None, None, None, None, refused):
        fake_slurm.trouble("sbatch", words)
    with pytest.raises(SubmissionError, match="1 of 3 variants are submitted"):
        make(THREE)
    [made] = Sweep.list(fake_slurm.folder.parent / "runs")
    assert [it.state for it in made.status.variants] == ["pending", "failed", "rendered"]
    assert made.resume() == 2
    assert [it.state for it in made.status.variants] == ["pending"] * 3


def test_cancel_ends_all_or_those_that_are_named(make: Make) -> None:
    made = make(THREE)
    status = made.cancel(["bs8"])
    assert [it.state for it in status.variants] == ["pending", "cancelled", "pending"]
    status = made.cancel()
    assert [it.state for it in status.variants] == ["cancelled"] * 3
    assert status.settled and status.exit_code == ExitCode.CANCELLED
    assert made.resume(["bs16"]) == 1
    with pytest.raises(RunNotFound, match=r"No variant is called 'bs5'\. The variants are bs4, bs8, bs16"):
        made.cancel(["bs5"])


def test_two_commands_do_not_submit_at_once(make: Make) -> None:
    made = make(THREE)
    with alone(made.paths), pytest.raises(SubmissionError, match="is submitting or cancelling variants"):
        made.resume()


def test_a_single_job_runs_all_and_each_variant_has_its_own_state(make: Make, fake_slurm: FakeSlurm) -> None:
    made = make({"serve.instances": [1, 2], "engine.max_batch_size": [4, 8]}, "sweep.allocation=one")
    [(job, facts)] = fake_slurm.jobs.items()
    script = Path(facts["script"])
    assert script == made.paths.folder / "scripts" / "sweep.sbatch"
    text = script.read_text()
    # Twice what one instance asks for.
    assert "#SBATCH --cpus-per-task=4\n" in text and "#SBATCH --gpus-per-node=2\n" in text
    assert text.endswith("x1-bs4 x1-bs8 x2-bs4 x2-bs8\n")
    assert [it.state for it in made.status.variants] == ["pending"] * 4
    fake_slurm.set(job, "RUNNING", nodes="n1")
    first, second = made.paths.run("x1-bs4"), made.paths.run("x1-bs8")
    for stage in ("build", "serve"):
        add_event(first, stage, "stage_begin", job_id=job)
        add_event(first, stage, "stage_end", job_id=job, exit_code=0)
    add_event(second, "build", "stage_begin", job_id=job)
    assert [it.state for it in made.status.variants] == ["completed", "running", "pending", "pending"]
    made.cancel(["x2-bs4"])
    assert fake_slurm.state(job) == "RUNNING"
    add_event(second, "build", "stage_end", job_id=job, exit_code=143)
    fake_slurm.set(job, "TIMEOUT", nodes="n1")
    status = made.status
    assert [it.state for it in status.variants] == ["completed", "failed", "cancelled", "cancelled"]
    assert "time limit" in (status.variants[1].sentence or "")
    assert "before its turn" in (status.variants[3].sentence or "")
    assert made.resume() == 3
    assert len(fake_slurm.jobs) == 2
    assert [it.state for it in made.status.variants] == ["completed", "pending", "pending", "pending"]


def test_a_single_job_whose_submission_was_killed_is_cancelled_with_the_sweep(
    make: Make, fake_slurm: FakeSlurm
) -> None:
    made = make(THREE, "sweep.allocation=one")
    for run in made.runs.values():
        run.paths.jobs.unlink()
    made.cancel()
    [job] = fake_slurm.jobs
    assert fake_slurm.state(job).startswith("CANCELLED")


@pytest.mark.parametrize("allocation", ["each", "one"])
@pytest.mark.parametrize("content", ["{", "[]", None])
def test_a_sweep_without_its_record_can_be_cancelled(
    make: Make, fake_slurm: FakeSlurm, tmp_path: Path, content: str | None, allocation: str
) -> None:
    made = make(THREE, f"sweep.allocation={allocation}")
    made.paths.record.unlink()
    if content is not None:
        made.paths.record.write_text(content)
    found = Sweep.find(made.id if content else made.paths.folder, tmp_path / "runs")
    with pytest.raises(RunNotFound, match=r"or its sweep\.json is damaged") as caught:
        _ = found.status
    assert f"trtllm-hpc sweep cancel {made.paths.folder} ends its jobs" in (caught.value.hint or "")
    assert Sweep.find(made.paths.folder, tmp_path / "runs").cancel().settled
    assert all(job["state"].startswith("CANCELLED") for job in fake_slurm.jobs.values())
