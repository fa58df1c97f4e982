"""Every wrong world gets one sentence, before a server starts."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.conftest import Runtime
from tests.validation.engines import new_engine
from tests.waiting import eventually
from trtllm_hpc.errors import FAIL, ExitCode, fail, warn
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.checks import sentence_of
from trtllm_hpc.runtime.preflight import Expected, SeenByRank, compare
from trtllm_hpc.runtime.process import descendants
from trtllm_hpc.runtime.records import RankRecord, read_events


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return new_engine(tmp_path / "engine", gpus_per_node=2)


def world(size: int = 4, per_node: int = 2) -> list[SeenByRank]:
    gpus = [str(gpu) for gpu in range(per_node)]
    return [
        SeenByRank(rank, size, rank, f"n{rank // per_node}", gpus, "Open MPI v4.1.4") for rank in range(size)
    ]


def changed(rank: int, **facts: object) -> list[SeenByRank]:
    return [replace(found, **facts) if found.rank == rank else found for found in world()]  # type: ignore[arg-type]


def problem(engine: Path | None, found: list[SeenByRank] | None = None, **planned: Any) -> str:
    """What is wrong with the ranks of two nodes, as a rule, in one sentence; empty if nothing is."""
    expected = replace(Expected(4, 2, 2, () if engine is None else ((engine, 4),)), **planned)
    sentences = [
        sentence_of(it) for it in compare(found or world(), expected, all_ranks=True) if it.state == FAIL
    ]
    assert "\n" not in "".join(sentences)
    return next(iter(sentences), "")


def test_a_world_as_planned_passes(engine: Path) -> None:
    assert problem(engine) == problem(engine, world()[::-1]) == problem(engine, gpus_per_node=0) == ""


WRONG: list[tuple[list[SeenByRank], str]] = [
    (
        world(1),
        "the world has 1 rank, but the plan says 4: Open MPI v4.1.4 was not joined by the launcher",
    ),
    (
        [replace(found, step_tasks=2) for found in world(2)],
        "the step has 2 tasks, but the plan says 4 ranks; give srun in the run's scripts --ntasks=4 again",
    ),
    (
        changed(1, host="n1"),
        "rank 1 is on n1, but the plan puts it beside rank 0 on n0: ranks must be distributed in blocks of 2",
    ),
    (changed(3, gpus=[]), "rank 3 on n1 sees 0 GPU(s) (none), but the plan gives each node 2"),
    (
        changed(2, findings=[warn("it is slow", "wait"), fail("n1 is broken", "mend it")]),
        "n1 is broken; mend it",
    ),
]


@pytest.mark.parametrize(("found", "sentence"), WRONG)
def test_a_wrong_world_is_one_sentence(engine: Path, found: list[SeenByRank], sentence: str) -> None:
    assert problem(engine, found).startswith(sentence)


def test_engine_and_tokenizer_are_looked_at(engine: Path, tmp_path: Path) -> None:
    (engine / "rank2.engine").unlink()
    assert "rank2.engine is missing; build it again" in problem(engine)
    (engine / "config.json").unlink()
    assert "there is no engine in" in problem(engine)
    # Copies of the engine get their GPUs one by one.
    assert problem(None, engines=((new_engine(tmp_path / "two", tensor=2), 2),)) == ""
    assert problem(None, tokenizer=tmp_path).startswith("there is no tokenizer in")


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (
            "--model=/models/llama",
            "/models/llama/config.json cannot be read on {host}, so no model can be loa",
        ),
        ("--program=no-such-server", "there is no no-such-server on {host}; take an image with"),
    ],
)
def test_a_server_that_loads_the_model_itself_needs_its_folder_and_its_programs(
    runtime: Runtime, option: str, sentence: str
) -> None:
    words = ("--world-size=1", "--ranks-per-node=1", "--gpus-per-node=0", "--without-mpi", option)
    assert runtime("preflight", *words).returncode == ExitCode.START
    assert refusal(runtime).startswith(sentence.format(host=socket.gethostname()))


def test_a_rank_that_alone_does_not_see_the_engine_is_named_with_its_node(engine: Path) -> None:
    sentence = problem(engine, changed(3, unseen_engine="/engines/e/output"))
    assert sentence.startswith(
        "rank 3 on n1 does not see the engine /engines/e/output; other ranks see it: mount its file"
    )


def test_a_small_limit_on_open_files_is_refused(runtime: Runtime, engine: Path) -> None:
    runtime.under = ["prlimit", "--nofile=64"]
    assert preflight(runtime, engine, 4, TRTLLM_HPC_PROCID="0")[0] == ExitCode.START
    assert refusal(runtime).startswith(
        f"only 64 files may be open on {socket.gethostname()} (ulimit -n), and a server needs 1024; "
        "add 'ulimit -S -n 1024' to the"
    )


def test_the_installed_release_is_compared_with_the_planned_one(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    metadata = site / "tensorrt_llm-0.17.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: 0.17.0\n")
    (site / "tensorrt_llm").mkdir()
    (site / "tensorrt_llm" / "__init__.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.syspath_prepend(str(site))
    sentence = problem(None, release="0.16.0")
    assert sentence.startswith("the container has TensorRT-LLM 0.17.0, but the plan is for 0.16.0; set")
    assert problem(None, release="0.17.0") == ""
    # The engine must be of what is really there, whatever was planned.
    assert "is of TensorRT-LLM 0.16.0, but the container has 0.17.0" in problem(engine, release="0.17.0")


def test_a_warning_about_a_node_is_given_once(engine: Path) -> None:
    doubt = warn("little memory may be locked on n1", "ask your site")
    ranks = [replace(found, findings=[doubt] if found.host == "n1" else []) for found in world()]
    assert compare(ranks, Expected(4, 2, 2, ((engine, 4),)), all_ranks=True) == [doubt]


@pytest.mark.parametrize(("ranks_per_node", "warned"), [(1, True), (2, False)])
def test_locked_memory_and_transports_matter_with_several_nodes(
    runtime: Runtime, ranks_per_node: int, warned: bool
) -> None:
    words = ("--world-size=2", f"--ranks-per-node={ranks_per_node}", "--gpus-per-node=1", "--without-mpi")
    seen = {"CUDA_VISIBLE_DEVICES": "0", "NCCL_NET": "Socket", "TRTLLM_HPC_NTASKS": "2"}
    answer = runtime("preflight", *words, **seen)
    assert answer.returncode == 0 and ("has NCCL_NET=Socket" in answer.stderr) == warned


def preflight(runtime: Runtime, engine: Path, size: int, **environment: str) -> tuple[int, str, str]:
    answer = runtime(
        "preflight",
        f"--world-size={size}",
        "--ranks-per-node=2",
        "--gpus-per-node=0",
        f"--engine={engine}",
        "--without-mpi",
        TRTLLM_HPC_NTASKS="4",
        TRTLLM_HPC_JOB_ID="77",
        **environment,
    )
    return answer.returncode, answer.stdout, answer.stderr


def test_a_good_world_without_mpi(runtime: Runtime, engine: Path) -> None:
    code, output, errors = preflight(runtime, engine, 4, TRTLLM_HPC_PROCID="0", CUDA_VISIBLE_DEVICES="2,3")
    assert (code, errors) == (0, "")
    assert "preflight: rank 0 of 4 on" in output and "GPUs 2,3" in output
    record = RankRecord.read(runtime.paths.rank_record("preflight", 0))
    assert record is not None and record.job_id == "77"
    assert record.details["gpus"] == ["2", "3"] and record.details["findings"] == []
    assert [event.name for event in read_events(runtime.paths)] == ["preflight_ok"]


def test_the_first_rank_of_a_node_records_the_gpu_models(
    runtime: Runtime, engine: Path, tmp_path: Path
) -> None:
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    line = "NVIDIA H200, 570.86, 143771 MiB"
    smi.write_text(f'#!/bin/sh\n[ "$3" = --id=2,3 ] && echo "{line}" && echo "{line}"\n')
    smi.chmod(0o755)
    seen = {"CUDA_VISIBLE_DEVICES": "2,3", "PATH": f"{smi.parent}:{os.environ['PATH']}"}
    for task, place in (("0", "0"), ("1", "1")):
        code, _, errors = preflight(runtime, engine, 4, TRTLLM_HPC_PROCID=task, SLURM_LOCALID=place, **seen)
        assert code == 0, errors
    records = [RankRecord.read(runtime.paths.rank_record("preflight", rank)) for rank in (0, 1)]
    for found in ("gpu_models", "gpu_limits"):
        assert [record.details[found] for record in records if record] == [[line] * 2, []]


@pytest.mark.parametrize(
    ("size", "sentence"),
    [(2, "the step has 4 tasks, but the plan says 2 ranks"), (4, "there is no engine in")],
)
def test_a_refused_start_gives_its_reason_in_the_log_and_in_the_events(
    runtime: Runtime, tmp_path: Path, size: int, sentence: str
) -> None:
    code, _, errors = preflight(runtime, tmp_path, size, TRTLLM_HPC_PROCID="0")
    assert code == ExitCode.START
    assert errors.startswith("error: preflight: ") and sentence in errors and errors.count("\n") == 1
    assert sentence in refusal(runtime)


def refusal(runtime: Runtime) -> str:
    """The reason in the only event."""
    [event] = read_events(runtime.paths)
    assert event.name == "preflight_failed"
    return str(event.data["reason"])


def test_without_mpi4py_the_error_names_what_to_install(runtime: Runtime, engine: Path) -> None:
    answer = runtime(
        "preflight", "--world-size=1", "--ranks-per-node=1", "--gpus-per-node=0", f"--engine={engine}"
    )
    assert answer.returncode == ExitCode.START
    assert "pip install mpi4py" in answer.stderr and "Traceback" not in answer.stderr


def test_the_phase_whose_nodes_are_wrong_is_named(runtime: Runtime, engine: Path) -> None:
    words = [
        "--world-size=2",
        "--ranks-per-node=1",
        "--gpus-per-node=0",
        "--component=1",
        "--phase=generation",
    ]
    assert runtime("preflight", *words, "--without-mpi").returncode == ExitCode.START
    assert refusal(runtime).startswith("phase generation: ")


def start_with_mpi(
    runtime: Runtime, engine: Path, mpi: str, task: int, **environment: str
) -> subprocess.Popen[str]:
    """The preflight of one task where ``from mpi4py import MPI`` does what is given, as C code would."""
    package = runtime.paths.folder / "libraries" / "mpi4py"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "MPI.py").write_text(mpi, encoding="utf-8")
    runtime.isolated = False
    world = ("--world-size=4", "--ranks-per-node=2", "--gpus-per-node=0", f"--engine={engine}")
    where = {"PYTHONPATH": str(package.parent), "SLURM_PROCID": str(task)}
    return runtime.start("preflight", *world, **where, **environment)


def with_mpi(runtime: Runtime, engine: Path, mpi: str, task: int, **environment: str) -> tuple[int, str]:
    """Its exit code, and what it says to its error stream."""
    process = start_with_mpi(runtime, engine, mpi, task, **environment)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


ABORTS = "import os; os._exit(1)"
HANGS = "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM}); time.sleep(3600)"


def test_an_mpi_that_ends_its_process_is_reported(runtime: Runtime, engine: Path) -> None:
    code, errors = with_mpi(runtime, engine, ABORTS, task=0)
    assert code == ExitCode.START and errors.count("\n") == 1
    assert "error: preflight: MPI ended its process (exit code 1) before the ranks were joined" in errors
    assert "before the ranks were joined" in refusal(runtime)


@pytest.mark.long
def test_a_rank_that_alone_knows_the_reason_reports_it(runtime: Runtime, engine: Path) -> None:
    """Rank 0 waits for the others in MPI, or comes late: this rank's end must not be a silent one."""
    code, errors = with_mpi(runtime, engine, ABORTS, task=1)
    assert code == ExitCode.START and errors.count("\n") == 1
    output = f"rank 1 on {socket.gethostname()}: MPI ended its process (exit code 1)"
    assert f"error: preflight: {output}" in errors
    assert output in refusal(runtime)


def test_a_rank_whose_step_ends_meanwhile_reports_nothing(runtime: Runtime, engine: Path) -> None:
    """Slurm ends a step's other tasks as soon as rank 0 has spoken and gone."""
    aborts_seen = runtime.paths.folder / "aborted"
    mpi = f"import os, pathlib; pathlib.Path({str(aborts_seen)!r}).touch(); os._exit(1)"
    process = start_with_mpi(runtime, engine, mpi, task=1)
    assert eventually(aborts_seen.exists)
    assert eventually(lambda: not descendants(process.pid))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (ExitCode.START, "")
    assert read_events(runtime.paths) == []


@pytest.mark.long
def test_an_mpi_that_hangs_is_killed_after_the_time_limit(runtime: Runtime, engine: Path) -> None:
    code, errors = with_mpi(runtime, engine, HANGS, task=0, TRTLLM_HPC_PREFLIGHT_SECONDS="1")
    assert code == ExitCode.START and errors.count("\n") == 1
    assert "error: preflight: MPI did not join the ranks within 1 s" in errors
    assert "within 1 s" in refusal(runtime)


# Full file systems ------------------------------------------------------------------------


def test_a_full_file_system_is_named_before_mpi_fails_on_it(runtime: Runtime, tmp_path: Path) -> None:
    """A small file system of the test's own, full but for the run folder's own files."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", small], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("only root can mount a file system")
    try:
        runtime.paths = RunPaths(small / "run")
        runtime.paths.make_folders()
        shutil.copy(tmp_path / "a run's folder" / "runtime.pyz", runtime.paths.runtime)
        words = ("--world-size=1", "--ranks-per-node=1", "--gpus-per-node=0", "--without-mpi")
        answer = runtime("preflight", *words)
        assert answer.returncode == ExitCode.START and "Traceback" not in answer.stderr, answer.stderr
        assert f"on the file system {small}) on {socket.gethostname()} has " in answer.stderr
        assert "MiB free, but 32 MiB are needed; free space there" in answer.stderr
        # Full to the last byte, nothing can be recorded: the error says where.
        with suppress(OSError), (small / "rest").open("wb", buffering=0) as rest:
            while rest.write(b"x" * 4096):
                pass
        ended = runtime("stop", "--by=me", "--reason=why")
        assert ended.returncode == ExitCode.START and "Traceback" not in ended.stderr, ended.stderr
        assert f"No space left on device, the file system {small}" in ended.stderr
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)
