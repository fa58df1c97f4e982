"""Failures of serving LLMs on Slurm, each in several wordings: what is said, and what only follows."""

from __future__ import annotations

import io

import pytest
from click.testing import CliRunner

from trtllm_hpc.cli import command
from trtllm_hpc.logs.causes.explain import Finding, likeliest_first, of_lines
from trtllm_hpc.logs.causes.table import Degree
from trtllm_hpc.logs.facts import facts_of_stream

TIME_LIMIT = "slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2026-04-01T03:15:20 DUE TO TIME LIMIT ***\n"
CANCELLED = "slurmstepd: error: *** STEP 8.0 ON n1 CANCELLED AT 2026-04-01T03:15:20 ***\n"
EXPIRED = "srun: error: Check SLURM_JOB_ID environment variable. Expired or invalid job 8\n"
ORTE = "ORTE was unable to reliably start one or more daemons.\nThis usually is caused by:\n\n* not finding\n"
PRTE = "PRTE was unable to start one or more daemons on the nodes of this allocation\n"
SPAWN = """\
Exception in thread Thread-1 (_manager_spawn):
Traceback (most recent call last):
  File "/usr/local/lib/python3.12/dist-packages/mpi4py/futures/_lib.py", line 938, in client_spawn
    comm = MPI.COMM_SELF.Spawn(python_exe, args, max_workers, info)
  File "mpi4py/MPI/Comm.pyx", line 2015, in mpi4py.MPI.Intracomm.Spawn
mpi4py.MPI.Exception: {error}
[sidecar] gave up after 600 s: Connection refused
"""
LAUNCH = (
    "srun: StepId=7.0 aborted before step completely launched.\n"
    "srun: error: task {} launch failed: Unspecified error\n"
)
RAY = "WARNING 04-01 02:45:50 ray_utils.py:320] {}\n"


def explained(text: str) -> tuple[Finding, ...]:
    return likeliest_first(of_lines([facts_of_stream(io.BytesIO(text.encode()), "log").causes]))


@pytest.mark.parametrize(
    ("log", "cause", "words"),
    [
        (
            f"Host key verification failed.\r\n{'-' * 60}\n{ORTE}{'-' * 60}\n",
            "orte-daemons",
            "srun --mpi=pmix",
        ),
        (f"ssh: connect to host n2 port 22: Connection refused\n{PRTE}", "orte-daemons", "srun --mpi=pmix"),
        (
            "ImportError: /tmp/u/a/cuda_utils.so: failed to map segment from shared object\n",
            "kind-noexec",
            "TMPDIR",
        ),
        (
            "OSError: /scratch/c/a.so.2: failed to map segment from shared object: Operation not permitted\n",
            "kind-noexec",
            "findmnt -T /scratch/c",
        ),
        (
            "RuntimeError: start (0) + length (2048) exceeds dimension size (1536).\n",
            "kind-checkpoint",
            "config.json",
        ),
        (SPAWN.format(error="MPI_ERR_UNKNOWN: unknown error"), "mpi-spawn-refused", "trtllm-llmapi-launch"),
        (SPAWN.format(error="MPI_ERR_INTERN: internal error"), "mpi-spawn-refused", "Open MPI 4"),
        (SPAWN.format(error="MPI_ERR_SPAWN: could not spawn processes"), "mpi-spawn", "trtllm-llmapi-launch"),
        (LAUNCH.format(0), "slurm-launch-mpi", "--mpi=none"),
        (LAUNCH.format("3-5") + TIME_LIMIT, "slurm-launch-mpi", "--mpi=pmi2"),
        (
            RAY.format(
                "The number of required GPUs exceeds the total number of available GPUs in the "
                "placement group."
            )
            + TIME_LIMIT,
            "ray-placement",
            "ray status",
        ),
        (
            "INFO 04-01 02:50:20 ray_utils.py:214] Waiting for creating a placement group of specs for 310 "
            f"seconds. specs=[]\n{TIME_LIMIT}",
            "ray-placement",
            "VLLM_HOST_IP",
        ),
        (
            "[TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp * cp (a.cpp:1)\n",
            "trtllm-world-size",
            "ranks",
        ),
        (
            "RuntimeError: MPI world size (2) must be equal to tp_size * pp_size (4)\n",
            "trtllm-world-size",
            "srun",
        ),
        ("ValueError: tensor_parallel_size (8) does not match MPI size 4\n", "trtllm-world-size", "srun"),
        ("[TRT-LLM] [E] mapping.world_size 8 != mpi_world_size 1\n", "trtllm-world-size", "srun"),
        (
            "FileExistsError: [Errno 17] File exists: '/cache/engine/rank.lock'\n",
            "fs-exists-race",
            "SLURM_PROCID",
        ),
        ("OSError: [Errno 39] Directory not empty: '/cache/a' -> '/cache/b'\n", "fs-exists-race", "one"),
        (
            "slurmstepd: error: write to /sys/fs/cgroup/cpuset/slurm/cpuset.cpus: No space left on device\n",
            "slurm-cpuset-empty",
            "scontrol show node",
        ),
        (f"{CANCELLED}{EXPIRED}", "slurm-step-cancelled", "Look"),
        ("fatal: could not read Username for 'https://github.com'\n", "file-git-access", "token"),
    ],
)
def test_the_cause_is_said_with_what_leads_on(log: str, cause: str, words: str) -> None:
    first = explained(f"fine\n{log}")[0]
    assert first.id == cause and words in first.next


CONFIG = """\
[TensorRT-LLM] TensorRT-LLM version: 1.2.0
  "transformers_version": "4.57.1",
Traceback (most recent call last):
  File "/opt/lib/python3.12/dist-packages/{package}/models/config.py", line 7, in from_config
    {source}
{error}
"""


@pytest.mark.parametrize("package", ["transformers", "tensorrt_llm", "vllm"])
@pytest.mark.parametrize(
    ("source", "error"),
    [
        ('kind = config["rope_type"]', "KeyError: 'rope_type'"),
        ("assert config.n_group > 0", "AssertionError"),
        ("return Config(**config)", "TypeError: Config.__init__() got an unexpected keyword argument 'moe'"),
        ("config.layer_types[0]", "TypeError: 'NoneType' object is not subscriptable"),
    ],
)
def test_code_that_does_not_know_the_model_s_configuration_names_the_versions(
    package: str, source: str, error: str
) -> None:
    first = explained(CONFIG.format(package=package, source=source, error=error))[0]
    assert (
        first.id == "model-config"
        and package in first.sentence
        and f"pip show transformers {package}" in first.next
    )
    assert "TensorRT-LLM 1.2.0" in first.sentence and "written by transformers 4.57.1" in first.sentence


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    "GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free. "
    "Process 411 has 70.00 GiB memory in use.\n"
)


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        ("(Worker_TP0 pid=411) INFO loading\n", "gpu-memory-own"),
        ("n1:411:411 [0] NCCL INFO cudaDriverVersion 12040\n", "gpu-memory-own"),
        ("(Worker_TP0 pid=412) INFO loading\n", "gpu-memory-others"),
        ("", "gpu-memory-others"),
    ],
)
def test_the_process_that_holds_the_memory_may_be_the_rank_itself(before: str, cause: str) -> None:
    assert explained(before + OOM)[0].id == cause


def test_an_option_in_brackets_is_named() -> None:
    assert "moon_kind" in explained("ValueError: not supported: ['moon_kind']\n")[0].next


def test_what_the_program_proposes_is_the_next_step() -> None:
    block = "Possible solutions:\n1. Decrease --moon-count\n2. Buy a moon\n\nfine\n"
    log = f"RuntimeError: not enough moons\n{block}"
    assert "1. Decrease --moon-count 2. Buy a moon" in explained(log)[0].next
    known = f"{OOM}Hint: lower the share of the KV cache\nfine\n"
    assert explained(known)[0].next.startswith("The program itself says: Hint: lower the share")


@pytest.mark.parametrize(
    ("log", "degree"),
    [
        (OOM, Degree.KNOWN),
        (f"error: the moon is dark\n{OOM}", Degree.LIKELY),
        (f"RuntimeError: the moon is dark\n{TIME_LIMIT}", Degree.LIKELY),
        (f"libibverbs: Warning: couldn't load driver 'x': no such file\n{OOM}", Degree.KNOWN),
        (TIME_LIMIT, Degree.LIKELY),
    ],
)
def test_a_cause_is_known_only_if_no_other_error_stands_before_it(log: str, degree: Degree) -> None:
    assert explained(log)[0].degree is degree


def test_a_time_limit_only_follows_a_cause_that_stands_before_it() -> None:
    found = explained(
        f"NCCL WARN Duplicate GPU detected : rank 2 and rank 0 both on CUDA device 1000\n{TIME_LIMIT}"
    )
    assert [it.kind.value for it in found] == ["root", "consequence"]


@pytest.mark.parametrize(
    "level", ["[TRT-LLM] [I] retrying", "INFO 04-01 02:45:50 a.py:1]", "[WARNING] retrying"]
)
def test_a_traceback_at_information_level_is_calm(level: str) -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nValueError: no moon\n'
    assert explained(f"{level} {trace}fine\n") == ()


def test_five_suspicious_lines_with_rank_node_time_and_place_stand_below_the_answer() -> None:
    lines = [f"2026-04-01 02:45:5{n} [rank{n}]: RuntimeError: no {'moon' * (n + 1)}" for n in range(9)]
    log = "\n".join([*lines, "srun: error: n7: task 1: Exited with exit code 1"])
    output = CliRunner().invoke(command, ["explain", "-"], input=log).output
    shown = output.partition("most suspicious lines:\n")[2].splitlines()
    assert len(shown) == 5 and shown[0] == "  -:1, rank 0, 2026-04-01 02:45:50: RuntimeError: no moon"
    assert (
        "on n7"
        in CliRunner().invoke(command, ["explain", "-"], input=log.partition("\n")[0] + log[-50:]).output
    )


def test_the_last_cluster_of_errors_counts_most() -> None:
    early = "".join(f"ValueError: early {chr(103 + n) * 3}\n" for n in range(9))
    late = "".join(f"ValueError: late {chr(103 + n) * 3}\n" for n in range(3))
    log = early + "all is well\n" * 9000 + late
    shown = CliRunner().invoke(command, ["explain", "-"], input=log).output.partition("suspicious lines:")[2]
    assert shown.count("late") == 3


def test_a_file_s_name_is_a_rank_only_if_it_is_ours() -> None:
    for name, rank in (
        ("serve_3.out", 3),
        ("logs/serve.1_3.out", 3),
        ("vllm_98213.out", None),
        ("x_3.log", None),
    ):
        assert [it.rank for it in facts_of_stream(io.BytesIO(OOM.encode()), name).causes] == [rank]


@pytest.mark.parametrize(("lines", "survived"), [(40, False), (200, True)])
def test_what_an_entry_names_precisely_is_not_survived_by_what_other_ranks_still_say(
    lines: int, survived: bool
) -> None:
    log = "NCCL WARN Cuda failure 'out of memory'\n" + "".join(f"rank {it} goes on\n" for it in range(lines))
    facts = facts_of_stream(io.BytesIO(log.encode()), "a.out")
    assert [it.id for it in facts.causes] == ["nccl-out-of-memory"]
    assert facts.survived is survived


def test_a_warning_of_ucx_and_a_refused_request_are_no_causes() -> None:
    """UCX goes on with another version of its interface, and a server with its other clients."""
    calm = (
        "[n1:331  :0] ucp_context.c:9 UCX  WARN  UCP API version is incompatible: required >= 1, actual 0\n"
        "ERROR 05-12 02:47:14 [a.py:1] Error with model error='x' type='NotFoundError' param=None code=404\n"
        "(EngineCore_DP0 pid=8)   warnings.warn(\n"
    )
    assert explained(calm) == ()
    assert (
        "Unsupported architecture"
        in explained(f"{calm}Assertion failed: Unsupported architecture\n")[0].sentence
    )
