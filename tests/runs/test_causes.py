"""Why a run has failed: `causes` of its status, the likeliest first, and what the commands print of them."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from tests.logs.runs import add_rank
from tests.runs.conftest import RunOf
from trtllm_hpc.cli.explain import command as explain
from trtllm_hpc.cli.status import command
from trtllm_hpc.logs.causes.explain import Finding, capitalised
from trtllm_hpc.logs.causes.table import causes
from trtllm_hpc.paths import RunPaths, call_name
from trtllm_hpc.runs.status import RunStatus, run_status
from trtllm_hpc.runtime.ending import UNREQUESTED
from trtllm_hpc.runtime.records import add_event
from trtllm_hpc.scheduler.submission_record import read_submission

OOM = "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMalloc(ptr, n): out of memory (a.h:1)\n"
LOST = "RuntimeError: NCCL error: remote process exited or there was a network error, NCCL version 2.14.3\n"
INFO = "[TensorRT-LLM][INFO] served a request\n"


@pytest.fixture
def run(run_of: RunOf) -> RunPaths:
    """A run whose serve job has failed with exit code 1."""
    return run_of("COMPLETED", "FAILED=1:0", "CANCELLED")


def ids(status: RunStatus) -> list[str]:
    return [one.id for one in status.causes]


def shown(run: RunPaths) -> str:
    return CliRunner().invoke(command, [str(run.folder), "--runs", str(run.folder.parent)]).output


def test_the_root_cause_of_one_rank_goes_before_what_another_noticed_earlier(run: RunPaths) -> None:
    add_rank(run, 0, log=LOST, ended_at=20.0, exit_code=1)
    add_rank(run, 1, log=OOM, ended_at=20.4, exit_code=1)
    run.batch_log("serve").write_text("srun: error: n0: task 0: Exited with exit code 1\n")
    status = run_status(run)
    assert ids(status) == ["cuda-out-of-memory", "nccl-remote", "slurm-task-failed"]
    assert (status.causes[0].rank, status.causes[0].line) == (1, 1)
    lines = shown(run).splitlines()
    assert "cause: The GPU's memory is full." in lines
    assert any(line.startswith("next: Lower the KV cache's share") for line in lines)
    assert "then: NCCL lost another rank." in lines


def test_what_a_program_of_ours_says_goes_before_slurm_s_word_that_it_ended(run_of: RunOf) -> None:
    run = run_of("COMPLETED", "COMPLETED", "FAILED=9:0")
    run.rank_log("companion", 0).write_text("asks\nerror: the window is 0.1 s long\n  next: ask for more\n")
    run.batch_log("companion").write_text("srun: error: n0: task 0: Exited with exit code 9\n")
    lines = shown(run).splitlines()
    assert "cause: The window is 0.1 s long." in lines and "next: ask for more" in lines
    assert ids(run_status(run)) == ["reported", "slurm-task-failed"]


def test_a_killed_batch_script_is_the_cause_where_no_log_tells_another(run_of: RunOf) -> None:
    run = run_of("COMPLETED", "FAILED=0:9", "CANCELLED")
    run.batch_log("serve").write_text(
        "slurmstepd: error: *** STEP 7.2 ON n0 FAILED (non-zero exit code) ***\n"
    )
    cause, *_ = run_status(run).causes
    assert cause.sentence == "The job's batch script was killed by signal 9, so that Slurm ended the job."


def test_what_the_first_rank_recorded_goes_before_a_traceback_that_followed(run: RunPaths) -> None:
    log = (
        "Traceback (most recent call last):\n  File 'a.py', line 1\nRuntimeError: Connection closed by peer\n"
    )
    reason = "the model's process of rank 0 was killed or crashed"
    add_rank(run, 0, world_size=1, log=log, ended_at=20.0, exit_code=-9, reason=reason)
    status = run_status(run)
    assert status.causes[0].sentence == "The model's process of rank 0 was killed or crashed."


def test_that_a_server_ended_by_itself_is_no_cause(run: RunPaths) -> None:
    log = (
        "(APIServer pid=411) WARNING 11-28 20:11:40 [core_client.py:702] [shutdown] MPClient: engine core"
        " exited unexpectedly; starting cleanup\n"
        "(APIServer pid=411) ERROR 11-28 20:11:40 [async_llm.py:701] AsyncLLM output_handler failed.\n"
        "(APIServer pid=411) ERROR 11-28 20:11:40 [async_llm.py:701] Traceback (most recent call last):\n"
        '(APIServer pid=411) ERROR 11-28 20:11:40 [async_llm.py:701]   File "/a/vllm/v1/engine/async_llm.py",'
        " line 657, in output_handler\n"
        "(APIServer pid=411) ERROR 11-28 20:11:40 [async_llm.py:701]     raise self._format_exception(e)\n"
        "(APIServer pid=411) ERROR 11-28 20:11:40 [async_llm.py:701] vllm.v1.engine.exceptions."
        "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
        '(APIServer pid=411) INFO:     127.0.0.1:5 - "POST /v1/chat HTTP/1.1" 503 Service Unavailable\n'
        "(APIServer pid=411) INFO:     Shutting down\n"
    )
    add_rank(run, 0, world_size=1, log=log, ended_at=20.0, exit_code=0, reason=UNREQUESTED)
    cause, *others = run_status(run).causes
    assert cause.id == "engine-core-killed" and "vanished without an error of its own" in cause.sentence
    assert others[-1].sentence == "The server ended by itself, without a request to stop."
    add_rank(run, 0, world_size=1, log="fine\n", ended_at=20.0, exit_code=0, reason=UNREQUESTED)
    assert "first error: The server ended by itself, without a request to stop." in shown(run)
    add_rank(run, 0, world_size=1, log="error: it is odd\n", ended_at=20.0, exit_code=0, reason=UNREQUESTED)
    assert run_status(run).causes[0].sentence == "It is odd."


@pytest.mark.parametrize(
    ("line", "degree"),
    [
        (OOM, "cause"),
        ("PermissionError: [Errno 13] Permission denied: '/.cache'\n", "likely cause"),
        ("slurmstepd: error: the moon is in the wrong house\n", "first error"),
    ],
)
def test_status_says_how_much_is_known(run: RunPaths, line: str, degree: str) -> None:
    add_rank(run, 0, world_size=1, log=line, ended_at=20.0, exit_code=1)
    assert any(it.startswith(f"{degree}: ") for it in shown(run).splitlines())
    assert run_status(run).causes[0].degree.value == ("known cause" if degree == "cause" else degree)


def test_a_recorded_reason_has_the_advice_that_the_log_gives_with_it(run: RunPaths) -> None:
    reason = "there is no program 'tritonserver' on n0"
    log = f"error: {reason}.\n  next: set triton.server in the cluster profile\n"
    add_rank(run, 0, world_size=1, log=log, ended_at=20.0, exit_code=7, reason=reason)
    assert run_status(run).causes[0].next == "set triton.server in the cluster profile"


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("TIMEOUT", "slurm-time-limit"),
        ("PREEMPTED", "slurm-preempted"),
        ("NODE_FAIL", "slurm-node-failure"),
        ("OUT_OF_MEMORY=0:125", "slurm-out-of-memory"),
        ("FAILED=0:53", "slurm-output-file"),
    ],
)
def test_what_slurm_itself_says_comes_first(run_of: RunOf, state: str, cause: str) -> None:
    run = run_of("COMPLETED", state, "CANCELLED")
    run.batch_log("serve").write_text(LOST)
    status = run_status(run)
    assert ids(status) == [cause, "nccl-remote"]
    assert status.causes[0].next and "signal" not in status.stages[1].sentence


def test_exit_codes_of_slurm_that_are_no_signals(run_of: RunOf) -> None:
    run = run_of("FAILED=0:53", "OUT_OF_MEMORY=0:125", "FAILED=0:9")
    sentences = [stage.sentence for stage in run_status(run).stages]
    killed = "has failed (its batch script was killed by signal 9)"
    assert sentences == ["has failed", "used more memory than it requested", killed]


def test_a_killed_rank_is_not_explained_by_an_old_line_or_by_another_rank(run: RunPaths) -> None:
    add_rank(run, 0, log=LOST, ended_at=20.5, exit_code=1, reason="Rank 0 lost another rank.")
    add_rank(run, 1, log="error: request 7 timed out\n" + OOM + INFO * 600, ended_at=20.0, exit_code=-11)
    status = run_status(run)
    assert status.sentence.endswith("killed by signal 11 (SIGSEGV); the others ended because of it")
    assert ids(status)[0] == "rank-killed"
    assert status.causes[0].sentence.startswith("Rank 1 on n1 was killed by signal 11 (SIGSEGV)")


def test_a_rank_without_an_end_is_named(run: RunPaths) -> None:
    add_rank(run, 0, ended_at=20.0, exit_code=0, stopped_by="SIGTERM")
    add_rank(run, 1, log=INFO)
    assert ids(run_status(run)) == ["rank-silent"]


def test_what_slurm_wrote_about_a_killed_rank_goes_first(run: RunPaths) -> None:
    add_rank(run, 0, world_size=1, log=INFO, ended_at=20.0, exit_code=-9)
    run.batch_log("serve").write_text("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n")
    assert ids(run_status(run)) == ["slurm-out-of-memory", "rank-killed"]


def test_the_jobs_own_reason_counts_unless_mpi_says_more(run: RunPaths) -> None:
    reason = "MPI ended its process (exit code 1) before the ranks were joined; its own messages say why"
    add_event(run, "serve", "preflight_failed", reason=reason)
    status = run_status(run)
    assert [(one.id, one.sentence) for one in status.causes] == [("reported", f"{reason}.")]
    run.rank_log("preflight", 0).write_text("UCX  ERROR no active messages transport to <no debug data>: x\n")
    assert ids(run_status(run)) == ["ucx-unreachable", "reported"]


def test_nothing_known_shows_the_last_lines_of_the_rank_that_died_first(run: RunPaths) -> None:
    add_rank(run, 0, log="zero\n", ended_at=30.0, exit_code=1)
    add_rank(run, 1, log="one\ntwo\nthe moon is in the wrong house\n", ended_at=20.0, exit_code=1)
    status = run_status(run)
    assert ids(status) == ["unknown"] and status.causes[0].rank == 1
    text = shown(run)
    assert "cause: Not known: no line of the logs names a cause. The last lines of serve[1]:" in text
    assert "  | one\n  | two\n  | the moon is in the wrong house\n" in text
    assert "--rank 1 --tail 50" in text


def test_a_rank_without_a_record_yet_is_not_the_cause_beside_the_reason_that_the_job_has_given(
    run: RunPaths,
) -> None:
    add_rank(run, 0)
    assert ids(run_status(run)) == ["rank-silent"]
    add_event(run, "serve", "failed", reason="The server was stopped by hand.")
    assert [it.sentence for it in run_status(run).causes] == ["The server was stopped by hand."]


def test_what_to_do_names_the_run_and_its_job(run: RunPaths) -> None:
    for cause in causes().values():
        told = Finding(cause.id, cause.kind, cause.sentence, cause.next).shown(str, "demo-1", "4711").next
        assert not re.search(r"\b(RUN|JOB)\b", told), cause.id
    add_rank(run, 0, log=INFO, ended_at=20.0, exit_code=-9)
    lines = shown(run).splitlines()
    submission = read_submission(run)
    assert submission is not None
    [following] = [line for line in lines if line.startswith("next: ")]
    assert f"sacct -j {submission.stages['serve'].job_id} " in following
    assert f"trtllm-hpc logs {call_name(run)} --rank 0" in following
    explained = CliRunner().invoke(explain, [str(run.rank_log("serve", 0))]).output
    assert "RUN" not in explained


def test_what_the_cause_says_is_not_said_twice(run: RunPaths) -> None:
    reason = "n1 sees no model in /m"
    add_event(run, "serve", "preflight_failed", reason=reason)
    assert [line for line in shown(run).splitlines() if reason in line] == [f"cause: {reason}."]
    assert reason in run_status(run).sentence


def test_a_sentence_begins_with_a_capital_letter_but_a_host_and_a_path_stay() -> None:
    texts = ("the disk is full", "sbx-n1 has no disk", "/dev/shm is full", "n1: lost", "rank 0 on n1 died")
    assert [capitalised(text)[:4] for text in texts] == ["The ", "sbx-", "/dev", "n1: ", "Rank"]
