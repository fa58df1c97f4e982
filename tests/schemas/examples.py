"""Examples of what commands print with ``--json``, for ``docs/json.md``: shorter than in earnest."""

from __future__ import annotations

from dataclasses import replace

from trtllm_hpc.bench.analysis.compare import Comparison, Row
from trtllm_hpc.bench.levels import OpenLoop
from trtllm_hpc.bench.results import (
    ClientUse,
    Distribution,
    Interval,
    LevelResult,
    Measurement,
    Pass,
    Verdict,
    Window,
)
from trtllm_hpc.cli.bench_list import MeasurementRow
from trtllm_hpc.cli.client_run import PromptRecord
from trtllm_hpc.cli.engines import Fault, PrunedEngine, PrunedEngines, VerifiedEngines
from trtllm_hpc.cli.metrics import MetricsSample
from trtllm_hpc.cli.render import RenderedRun
from trtllm_hpc.cli.submitted import SubmittedRun
from trtllm_hpc.cli.templates import TemplatesRow
from trtllm_hpc.client.functional_check import CheckedAnswer
from trtllm_hpc.client.request import AnswerRecord
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engine_cache.listing import EngineDetails, EngineRow
from trtllm_hpc.engines.migration import Change, Migrated
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.logs.causes.explain import Finding
from trtllm_hpc.logs.causes.table import Kind
from trtllm_hpc.report.endpoint import EndpointAccess
from trtllm_hpc.report.engines import FoundEngine
from trtllm_hpc.report.log_table import LogRow
from trtllm_hpc.report.versions import program_details, release_details, release_row
from trtllm_hpc.runs.accounting import RunUse
from trtllm_hpc.runs.listing import ListedRun
from trtllm_hpc.runs.prune import PrunedRun, PrunedRuns
from trtllm_hpc.runs.shipped_jobs import ShippedText, shipped_jobs
from trtllm_hpc.runs.stages import StageStatus
from trtllm_hpc.runs.status import InstanceStatus, RankStatus, RunState, RunStatus
from trtllm_hpc.runtime.bad_nodes import BadNode
from trtllm_hpc.runtime.engine_cache.cache import Manifest
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.sandbox.cluster import NodeStatus, Status
from trtllm_hpc.scheduler.job_info import JobTimes
from trtllm_hpc.scheduler.waiting import Waiting
from trtllm_hpc.tensorrt_llm.memory.planner import MemoryPlan, Room
from trtllm_hpc.tensorrt_llm.memory.rank_memory import Buffers, Limits, Parallel
from trtllm_hpc.tensorrt_llm.releases import find_release
from trtllm_hpc.tensorrt_llm.releases.learned import LearnedRelease
from trtllm_hpc.validation.checks import CheckRow, DoctorReport, row_of, rule_rows

_RUN = "tiny-llama-20261121-231143-7695"
_FOLDER = f"/scratch/ana/runs/{_RUN}"
_ENGINES = "/scratch/ana/engines"
_MADE_AT = 1795302720.5

JOB = next(
    replace(job, file=f"/opt/trtllm-hpc/jobs/{job.name}.yaml")
    for job in shipped_jobs()
    if job.name == "tiny-llama"
)
JOB_TEXT = ShippedText(**vars(JOB), text="# A small random model over two ranks...\nname: tiny-llama\n")

MIGRATED = Migrated(
    "# Our chat model\nname: chat\n\nmodel:\n  path: /models/llama\n\nengine:\n  backend: pytorch\n",
    (
        Change(
            "changed",
            "engine.backend",
            "engine.backend: pytorch",
            "the LLM API loads the model's checkpoint itself",
        ),
        Change("dropped", "engine.plugins", None, "it chose how an engine is built, and there is none"),
        Change(
            "lost",
            "engine.quantization.method",
            None,
            "nothing is quantized between checkpoint and server",
            "set model.path to a checkpoint in FP8: NVIDIA's, or one that Model Optimizer's hf_ptq.py made",
        ),
    ),
    "pytorch.yaml",
)

_FOUND = FoundEngine("found", "build-0f3a9c1d2b4e", f"{_ENGINES}/build-0f3a9c1d2b4e/output")
RENDERED = RenderedRun(
    _RUN, _FOLDER, tuple(f"{_FOLDER}/scripts/{stage}.sbatch" for stage in ("serve", "companion")), _FOUND
)
SUBMITTED = SubmittedRun(_RUN, _FOLDER, {"serve": "102", "companion": "103"}, _FOUND)

LEARNED = LearnedRelease("1.4.0", "/home/ana/.local/share/trtllm-hpc/releases/1.4.0.json")
DOCTOR = DoctorReport(
    checks=(
        CheckRow(
            id="runs-folder",
            title="runs can be written",
            outcome="ok",
            sentence="/scratch/ana/runs can be written to",
            remedy=None,
        ),
    ),
    memory=MemoryPlan(
        family="llama",
        parameters=8030261248,
        dtype="bfloat16",
        limits=Limits(64, 1, 8192, 3072, "engine.max_seq_len", 1.0),
        room=Room(
            parallel=Parallel(tensor=2),
            weights=8030298112,
            kv_per_token=65536,
            buffers=Buffers(1409286144, 459702272, 805306368),
            capacity=85899345920,
            cache=67675648000,
            tokens=1032648,
            requests=336,
        ),
        fraction=0.9,
        verdict="ok",
        sentence="1032648 tokens fit",
        remedy=None,
        suggestion=None,
    ),
    rules=(row_of(rule_rows(JobFile.model_validate({"name": "one"}))[0]),),
    notes=(),
)

_ENDPOINT = Endpoint(
    job_id="102",
    host="n1",
    address="10.97.0.11",
    http_port=23389,
    grpc_port=23578,
    metrics_port=23140,
    models=["ensemble", "tensorrt_llm"],
    ready_at=_MADE_AT,
    phases_s={"preflight": 0.7, "launch": 0.7, "load": 13.8},
    key_file=f"{_FOLDER}/key",
)
FINDING = Finding(
    id="nccl-duplicate-gpu",
    kind=Kind.ROOT,
    sentence="Ranks 2 and 0 were given the same GPU (1000).",
    next="Every rank has to see all GPUs of its node, or one of its own.",
    file=f"{_FOLDER}/logs/serve_2.out",
    line=118,
    rank=2,
    match="n1:29880:30398 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank 2 and rank 0 both on CUDA "
    "device 1000",
)
_TIMES = JobTimes(_MADE_AT - 60, _MADE_AT - 20, ends_by=_MADE_AT + 3580)
_WAITS = StageStatus(
    "companion",
    "PENDING",
    False,
    False,
    "waits in the queue: you already use all the running jobs that your account allows",
    "103",
    times=JobTimes(_MADE_AT - 59, expected_at=_MADE_AT + 1800),
    waiting=Waiting("AssocMaxJobsLimit", 1204, None, None, ("MaxJobs=1",)),
)
STATUS = RunStatus(
    run_id=_RUN,
    folder=_FOLDER,
    state=RunState.SERVING,
    sentence="stage serve runs",
    stages=(
        StageStatus(
            "serve",
            "RUNNING",
            False,
            False,
            "runs",
            "102",
            "n1",
            times=_TIMES,
            gpus=2,
            waited_s=40.0,
            gpu_hours=0.5,
        ),
        _WAITS,
    ),
    ranks=(RankStatus(0, "n1", "running"),),
    instances=(InstanceStatus(0, "ready", 0, None),),
    endpoint=_ENDPOINT,
    exit_code=ExitCode.OK,
    use=RunUse(waited_s=40.0, gpu_hours=0.5, energy_j=None),
    bad_nodes=(BadNode("n3", "the log of rank 1 says 'uncorrectable ECC error'", "100"),),
)
LISTED = ListedRun(
    _RUN,
    _FOLDER,
    "tiny-llama",
    "tiny-llama",
    RunState.SERVING,
    _ENDPOINT.http,
    _MADE_AT - 60,
    waited_s=40.0,
    gpu_hours=0.5,
)
PRUNED_RUNS = PrunedRuns(False, (PrunedRun(_RUN, _FOLDER, "ended 40 days ago", None),))
LOG = LogRow("serve", 1, "n2", "running", 8704, None, f"{_FOLDER}/logs/serve_1.out")

PROMPT = PromptRecord(
    prompt="What is machine learning?",
    options={"max_tokens": 16},
    model="ensemble",
    host="n1",
    answers=(
        AnswerRecord(
            protocol="grpc",
            text=" Machine learning is",
            latency_s=0.412,
            output_tokens=3,
            counted_by="server",
            texts=(" Machine learning is",),
            request_id="5f0c61d2a2e94b0f9c7d0f4ce1f0a1b2",
        ),
    ),
    error=None,
)
CHECKED_ANSWER = CheckedAnswer(
    prompt="What is machine learning?",
    way="ensemble (http)",
    text=" Machine learning is",
    error=None,
    is_equal=True,
    same_letters=20,
)

_VERDICT = Verdict(warnings=["20 requests were answered: below 100, p99 is practically the maximum."])
MEASUREMENT = Measurement(
    name="benchmark",
    started_at=_MADE_AT,
    settings={"rate_per_second": 4.0, "requests": 20},
    model="ensemble",
    protocol="grpc",
    streaming=True,
    provenance={"run": _RUN},
    levels=[
        LevelResult(
            OpenLoop(4.0),
            [
                Pass(
                    repeat=0,
                    started_s=0.5,
                    ended_s=6.2,
                    window=Window(0.9, 6.2),
                    sent=22,
                    measured=20,
                    failed=0,
                    metrics={
                        "ttft_ms": Distribution(64.6, 73.6, 85.4, 95.2, 98.5, 99.3, 20),
                        "goodput_per_s": 3.8,
                    },
                    client=ClientUse(0.4, 5.8, 0.07),
                    verdict=_VERDICT,
                )
            ],
            {
                "ttft_ms": {"mean": Interval(64.6), "p50": Interval(73.6), "p99": Interval(98.5)},
                "goodput_per_s": Interval(3.8),
            },
        )
    ],
    tokens={"output": 623, "output_source": "responses"},
    errors={},
    verdict=_VERDICT,
)
MEASUREMENT_ROW = MeasurementRow("benchmark", ("2/s", "4/s"), True, 40, _MADE_AT)
COMPARISON = Comparison(
    a="latest:before",
    b="latest:after",
    rows=[
        Row(
            level="8/s",
            key="ttft_ms",
            label="TTFT",
            unit="ms",
            statistic="p99",
            a=98.5,
            b=121.2,
            better=False,
            beyond=True,
            low=16.1,
            high=29.3,
            p_value=0.0004,
        )
    ],
    workload=[],
    judged=True,
    settings=[],
    environment=["engine key: build-0f3a9c1d2b4e, build-77b0e2c94f10"],
    notes=[],
    invalid=[],
)
ACCESS = EndpointAccess(
    run_id="tiny-llama-20260722-101500-3f9a",
    host="n1",
    openai_url="http://10.97.0.11:26550/v1",
    http="10.97.0.11:23389",
    grpc="10.97.0.11:23578",
    model="tiny-llama",
    key_file=f"{_FOLDER}/key",
    certificate_file=None,
    curl="curl -sS http://10.97.0.11:26550/v1/completions ...",
    python="from openai import OpenAI\n...",
    ssh="ssh -N -L 8000:10.97.0.11:26550 me@login1",
)
METRICS = MetricsSample(
    url="http://10.97.0.11:23140/metrics",
    host="n1",
    over_s=None,
    values={"finished[ensemble]": 40.0, "kv_used_share": 0.25},
)

ENGINE = EngineRow(
    name="build-0f3a9c1d2b4e",
    step="build",
    state="whole",
    note="",
    model="Llama-3-8B",
    backend="tensorrtllm",
    version="0.16.0",
    layout="tp 2",
    bytes=16060522496,
    built_at=_MADE_AT,
    build_seconds=412.7,
    last_used=_MADE_AT + 3600,
    folder=f"{_ENGINES}/build-0f3a9c1d2b4e/output",
)
ENGINE_DETAILS = EngineDetails(
    **vars(ENGINE),
    key={"key": "0f3a9c1d2b4e...", "document": {"step": "build"}},
    uses=(_FOLDER,),
    manifest=Manifest(
        files={"config.json": [7340, "5b1c..."]},
        built_at=_MADE_AT,
        seconds=412.7,
        host="n1",
        job_id="101",
        versions={"tensorrt_llm": "0.16.0"},
    ),
)
VERIFIED = VerifiedEngines(2, (Fault("build-0f3a9c1d2b4e", "rank0.engine is missing"),))
PRUNED = PrunedEngines(
    removed=False,
    entries=(PrunedEngine("build-0f3a9c1d2b4e", 16060522496, "was last used 40 days ago", None),),
)

TEMPLATES = TemplatesRow(
    image="nvcr.io#nvidia/tritonserver:24.12-trtllm-python-py3",
    origin="/app/all_models",
    fetched="2026-11-21 23:11",
    folder="/home/ana/.cache/trtllm-hpc/templates/tritonserver-24.12-3f1c/all_models",
    models=("inflight_batcher_llm/ensemble", "inflight_batcher_llm/tensorrt_llm"),
    whole=True,
)
CONFIGS = {"ensemble": 'name: "ensemble"\nplatform: "ensemble"\n...'}

_RELEASE = find_release(None, "0.16.0")
RELEASE = release_row(_RELEASE)
RELEASE_DETAILS = release_details(_RELEASE)
RELEASE_DETAILS = replace(
    RELEASE_DETAILS, programs=tuple(it for it in RELEASE_DETAILS.programs if it.name == "trtllm-build")
)
_COMMAND = _RELEASE.command("trtllm-build")
assert _COMMAND is not None
PROGRAM = program_details(_COMMAND)
PROGRAM = replace(
    PROGRAM,
    options=tuple(option for option in PROGRAM.options if option.name == "--max_batch_size"),
    not_in_this_release=PROGRAM.not_in_this_release[:1],
)

SANDBOX = Status(
    name="default",
    state="up",
    nodes_wanted=2,
    gpus_per_node=4,
    slurm_conf="/run/trtllm-hpc/default/etc/slurm.conf",
    subnet="10.97.0.0/24",
    partitions=("batch", "debug"),
    logs="/run/trtllm-hpc/default/log",
    daemons={"slurmctld": True, "slurmdbd": True},
    nodes=(NodeStatus("sbx-default-n1", "10.97.0.11", "idle", True),),
)
