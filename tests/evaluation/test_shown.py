"""Where scores are shown."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.render.cases import plan_of
from tests.sweeps.make import TP, grid, measured, write_sweep
from trtllm_hpc.cli.evaluate import command
from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.evaluation.scores import EvaluationSummary, TaskScore, against_threshold
from trtllm_hpc.paths import RunPaths, locked
from trtllm_hpc.render.scripts import render_scripts
from trtllm_hpc.sweeps.page import write_report


def summary(threshold: float) -> EvaluationSummary:
    score = TaskScore("facts", "exact_match,words", 0.44, 0.035, 200, {"protocol": "chat"})
    return EvaluationSummary("m", [against_threshold(score, threshold)], 200, 0, "0.4.13")


def keep(run: RunPaths, found: EvaluationSummary) -> None:
    run.evaluation().parent.mkdir(parents=True, exist_ok=True)
    found.write(run.evaluation())


def test_a_point_that_fails_its_gate_is_not_ranked_and_the_table_says_so(tmp_path: Path) -> None:
    variants = {"fast": ({TP: 2}, measured(2.0)), "good": ({TP: 2}, measured(1.0))}
    sweep = write_sweep(tmp_path / "s", variants, keys=[TP])
    assert sweep.results().best.ranking[0].variant == "fast"
    keep(sweep.paths.run("fast"), summary(threshold=0.5))
    keep(sweep.paths.run("good"), summary(threshold=0.4))
    found = sweep.results()
    assert [it.variant for it in found.best.ranking] == ["good"]
    assert {it.variant for it in found.points if it.frontier} == {"good"}
    why = "The answers fail the gate: facts 44.0 % (standard error 3.5 points, 200 questions): below"
    assert all(why in it.findings[0] for it in found.points if it.variant == "fast")
    assert {point.row()["score.facts"] for point in found.points} == {0.44}
    write_report(found, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "facts<wbr> score" in page or "facts score" in page
    assert why in page


def test_a_point_whose_gate_was_not_answered_is_not_ranked(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", {"a": ({TP: 2}, measured(1.0))}, keys=[TP])
    spec = sweep.paths.run("a").spec
    spec.write_text("name: a\ncompanion:\n  evaluate:\n    tasks: [facts]\n")
    assert sweep.results().best.ranking
    spec.write_text(f"{spec.read_text()}    threshold: 0.5\n")
    found = sweep.results()
    assert not found.best.ranking
    assert all("The answers were not evaluated." in it.findings for it in found.points)


@pytest.mark.parametrize(
    "bench, evaluate, expected, asked", [(0, 18, 18, True), (10, 18, 10, True), (16, 0, 16, False)]
)
def test_answers_are_evaluated_after_a_benchmark_that_is_not_valid(
    tmp_path: Path, bench: int, evaluate: int, expected: int, asked: bool
) -> None:
    python = tmp_path / "python"
    python.write_text(
        # Like the client, it reads the question: its writer would be killed by SIGPIPE otherwise.
        f'#!/bin/sh\necho "$3"\n'
        f'case "$3" in client) cat >/dev/null;; bench) exit {bench};; evaluate) exit {evaluate};; esac\n'
    )
    python.chmod(0o755)
    job = {"name": "a", "companion": {"evaluate": {"tasks": ["facts"]}}}
    plan = plan_of(job, {"name": "x", "python": str(python)}, str(tmp_path))
    script = render_scripts(plan)["companion.sh"]
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, "evaluate" in ended.stdout.split()) == (expected, asked)


def test_two_commands_do_not_evaluate_under_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = grid(tmp_path / "s").paths.run("tp2-bs16")
    run.spec.write_text("name: a\n")
    run.evaluation("mine").parent.mkdir(parents=True)
    for name in ("endpoint_of", "follower_of"):
        monkeypatch.setattr(f"trtllm_hpc.runs.endpoint.{name}", lambda *_, **more: None)
    with locked(run.evaluation("mine").with_name(".mine.lock"), BlockingIOError()):
        said = CliRunner().invoke(command, [str(run.folder), "--tasks", "facts", "--save-as", "mine"])
    assert said.exit_code == 2 and f"Another command is evaluating {run.run_id} as 'mine'" in said.output


@pytest.mark.parametrize(
    "options, expected",
    [
        (["--save-as", "../../x"], "must be 1 to 100 letters"),
        (["--save-as", "evaluation"], "the job's own evaluation"),
        (["--save-as", "evaluation.scores"], "the job's own evaluation"),
        (["--tasks", "a\nb"], "tasks: "),
        (["--not-worse-than", "nobody"], "nobody"),
        (["--not-worse-than", "tp2-bs16"], "has no finished evaluation to compare with"),
    ],
)
def test_what_cannot_be_done_is_refused_before_a_question(
    tmp_path: Path, options: list[str], expected: str
) -> None:
    sweep = grid(tmp_path / "runs" / "sweeps" / "s")
    for name in ("tp2-bs16", "tp2-bs32"):
        (sweep.paths.run(name).folder / "spec.yaml").write_text("name: a\n")
    options = [it.replace("tp2-bs16", "s/tp2-bs16") for it in options]
    said = CliRunner().invoke(
        command, [str(sweep.paths.run("tp2-bs32").folder), "--tasks", "facts", *options]
    )
    assert said.exit_code != 0
    assert expected in f"{said.output}{said.exception}"
    assert isinstance(said.exception, SystemExit | RunNotFound)


def test_a_shipped_task_needs_no_data() -> None:
    said = CliRunner().invoke(command, ["--prepare", "facts,"])
    assert said.exit_code == 0 and "facts: shipped with trtllm-hpc" in said.output


def test_a_run_has_its_scores_in_status_and_report(tmp_path: Path) -> None:
    from trtllm_hpc.report.html.charts import read_report_data
    from trtllm_hpc.report.html.page import report_page

    run = grid(tmp_path / "s").paths.run("tp2-bs16")
    assert "Scores of the answers" not in report_page(read_report_data(run, "benchmark"))
    keep(run, summary(0.5))
    page = report_page(read_report_data(run, "benchmark"))
    assert "The answers fail the gate" in page and "below the threshold of 50 %" in page
    keep(run, replace(summary(0.5), tasks=[replace(summary(0.5).tasks[0], passed=None, gate="")]))
    assert "Scores of the answers" in report_page(read_report_data(run, "benchmark"))
