"""``init job --from-aiconfigurator``: what NVIDIA's aiconfigurator 0.12.0 has written, as job files.

The files in ``tests/upstream/aiconfigurator`` are some of those that these commands wrote, as they were:

    aiconfigurator cli default --model-path Qwen/Qwen3-32B --total-gpus 8 --system h200_sxm
        --backend trtllm --isl 2000 --osl 300 --ttft 1000 --tpot 20
    ... --model-path Qwen/Qwen3-235B-A22B-FP8 --total-gpus 16 --isl 4000 --osl 1000 --ttft 2000 --tpot 50
        --generated-config-version 1.2.1
    ... --model-path Qwen/Qwen3-32B --total-gpus 8 --request-latency 8000 --prefix 500      (latency)
    ... --model-path Qwen/Qwen3-32B --total-gpus 8 --backend sglang                         (sglang)
"""

from __future__ import annotations

import csv
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ruamel.yaml import YAML

from trtllm_hpc.backends import backend_of
from trtllm_hpc.cli import command
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.validation.load import load, load_sweep

RESULTS = Path(__file__).parents[1] / "upstream" / "aiconfigurator"
DENSE, EXPERTS, LATENCY, SGLANG = (
    RESULTS / it for it in ("qwen3-32b", "qwen3-235b-a22b", "latency", "sglang")
)
MODEL = ("--model", "/models/it")
NEWER = "serve.image=nvcr.io#nvidia/tensorrt-llm/release:1.3.0rc23"
PROGRAM = shutil.which("aiconfigurator")


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def init(folder: Path, *options: str, file: str = "job.yaml") -> Result:
    words = ["init", "job", file, "--from-aiconfigurator", str(folder), *options, "--force"]
    return CliRunner().invoke(command, words, catch_exceptions=False)


def variants(folder: Path, *options: str, settings: tuple[str, ...] = ()) -> dict[str, JobFacts]:
    """Write a result as a sweep and load it: every variant keeps all rules of TensorRT-LLM's profile."""
    assert init(folder, *MODEL, *options).exit_code == 0
    loaded = load_sweep(Path("job.yaml"), "pyxis", settings)
    assert [it for found in loaded.variants for it in found.diagnostics] == []
    return {it.override.name: it.facts for it in loaded.variants if it.facts is not None}


def single(folder: Path, *settings: str) -> JobFile:
    """Write a single proposal as a job file and load it."""
    done = init(folder, *MODEL)
    assert done.output == "Wrote job.yaml.\n  next: trtllm-hpc render job.yaml --cluster pyxis\n"
    return load(Path("job.yaml"), "pyxis", settings).job


def written(folder: Path, kind: str) -> dict[str, Any]:
    """Return the LLM API's configuration as aiconfigurator wrote it."""
    configuration: dict[str, Any] = YAML(typ="safe").load(folder / f"{kind}_config.yaml")
    return configuration


def arriving(job: JobFile) -> dict[str, Any]:
    """Return the same configuration as the job file gives it to the server."""
    engine, sizes = job.engine, ("tensor_parallel", "pipeline_parallel", "moe_expert_parallel")
    keys = {f"{it}_size": getattr(engine, it) for it in sizes if getattr(engine, it) is not None}
    keys |= {it: getattr(engine, it) for it in ("max_batch_size", "max_num_tokens")}
    return {"backend": "pytorch", **engine.llm_api, **keys}


def gpus(facts: JobFacts) -> int:
    return sum(backend_of(facts.job).topology(facts.job, facts.cluster).world_sizes)


@pytest.mark.parametrize(
    ("folder", "settings"),
    [(DENSE, ()), (EXPERTS, ()), (EXPERTS, (NEWER,))],
    ids=["dense", "experts", "newer-release"],
)
def test_every_proposal_becomes_a_variant_without_a_finding(folder: Path, settings: tuple[str, ...]) -> None:
    found = variants(folder, settings=settings)
    places = sorted(it.parent for it in folder.glob("*/*/generator_config.yaml"))
    assert [*found] == [f"{it.parent.name}-{it.name}" for it in places]
    for place, facts in zip(places, found.values(), strict=True):
        with (place.parent / "best_config_topn.csv").open() as file:
            row = [*csv.DictReader(file)][int(place.name[3:]) - 1]
        total = 8 if folder == DENSE else 16
        groups = total // int(row["num_total_gpus"])
        assert gpus(facts) == total == groups * int(row["num_total_gpus"])
        benchmark = facts.job.companion.benchmark
        assert benchmark is not None and benchmark.concurrency == groups * int(row["concurrency"])
        phases = facts.job.serve.disaggregated
        if phases is None:
            assert arriving(facts.job) == written(place, "agg")
            assert facts.job.serve.instances == groups
        else:
            assert arriving(facts.job.with_phase(phases.context)) == written(place, "prefill")
            assert arriving(facts.job.with_phase(phases.generation)) == written(place, "decode")
            workers = [groups * int(row[f"({it})workers"]) for it in "pd"]
            assert [it.servers for _, it in phases.roles] == workers
        assert facts.job.name == f"job.{place.parent.name}-{place.name}"
        assert single(place, *settings).model_copy(update={"name": facts.job.name}) == facts.job


def test_the_file_names_the_question_and_the_predictions() -> None:
    facts = variants(DENSE)["disagg-top2"]
    benchmark = facts.job.companion.benchmark
    assert benchmark is not None and facts.job.model.path == "/models/it"
    assert (benchmark.workload.kind, benchmark.workload.input_tokens) == ("normal", 2000)
    assert (benchmark.workload.output_tokens, benchmark.exact_output) == (300, True)
    assert benchmark.slo == "ttft.mean<=1000ms,tpot.mean<=20ms"
    assert (benchmark.concurrency, benchmark.requests, benchmark.request_timeout_seconds) == (168, 3360, 60)
    text = Path("job.yaml").read_text()
    assert "# Proposals of NVIDIA's aiconfigurator for Qwen/Qwen3-32B on 8 GPUs (h200_sxm)." in text
    assert "# Predicted with measurements of TensorRT-LLM 1.3.0rc20." in text
    predicted = "648 tokens/s/GPU, 50.7 tokens/s/user, TTFT 375 ms, TPOT 19.7 ms"
    assert f"    disagg-top2: # 8 GPUs, predicted {predicted}\n" in text
    assert text.count("kv_cache_config") == 1, "all variants have it"
    single(DENSE / "disagg" / "top2")
    assert f"# 8 GPUs, predicted {predicted}\n" in Path("job.yaml").read_text()


def test_a_limit_on_the_whole_answer_and_a_cached_prefix_become_the_benchmark() -> None:
    benchmark = single(LATENCY).companion.benchmark
    assert benchmark is not None and benchmark.slo == "latency.mean<=8000ms"
    workload = benchmark.workload
    assert (workload.kind, workload.prefix_tokens, workload.input_tokens) == ("shared-prefix", 500, 1500)


def test_top_keeps_the_best_of_each_mode_and_a_mode_is_a_folder_too() -> None:
    assert [*variants(DENSE, "--top", "1")] == ["agg-top1", "disagg-top1"]
    assert [*variants(DENSE / "disagg")] == ["disagg-top1", "disagg-top2"]
    done = init(DENSE, *MODEL, "--name", "mine")
    assert done.output == "Wrote job.yaml.\n  next: trtllm-hpc sweep job.yaml --cluster pyxis --check\n"


def test_the_model_is_the_folder_that_aiconfigurator_has_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Qwen/Qwen3-32B, and not its folder") as caught:
        init(DENSE)
    assert caught.value.diagnostics[0].hint == "add --model FOLDER"
    result = changed(tmp_path, "agg/top1/generator_config.yaml", "model_path: Qwen", "model_path: /own/Qwen")
    init(result / "agg" / "top1")
    assert load(Path("job.yaml"), "pyxis").job.model.path == "/own/Qwen/Qwen3-32B"


def changed(folder: Path, file: str, old: str, new: str | None) -> Path:
    """Return a copy of a result with other text in a file, or without the file."""
    result = shutil.copytree(DENSE, folder / "result")
    text = (result / file).read_text()
    assert old in text
    (result / file).unlink() if new is None else (result / file).write_text(text.replace(old, new))
    return result


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("agg/top2/agg_config.yaml", "backend: pytorch", "backend: [", "agg_config.yaml:3: is not YAML"),
        ("agg/top2/agg_config.yaml", "", None, "top2/agg_config.yaml: there is no such file"),
        ("agg/top2/agg_config.yaml", "tensor_parallel_size", "size", "KeyError: 'tensor_parallel'"),
        ("disagg/top1/generator_config.yaml", "decode_workers", "workers", "KeyError: 'decode_workers'"),
        ("disagg/best_config_topn.csv", "", None, "best_config_topn.csv"),
        ("disagg/best_config_topn.csv", "374.8", "", "could not convert"),
        ("agg/best_config_topn.csv", ",4,4,", ",0,4,", "ZeroDivisionError"),
        ("agg/best_config_topn.csv", "num_total_gpus", "gpus", "KeyError: 'num_total_gpus'"),
    ],
)
def test_a_damaged_result_is_named_and_nothing_written(
    tmp_path: Path, file: str, old: str, new: str | None, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        init(changed(tmp_path, file, old, new), *MODEL)
    assert said in str(caught.value.diagnostics[0]), caught.value.diagnostics[0]
    assert not Path("job.yaml").exists()


def test_another_server_and_another_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        init(SGLANG, *MODEL)
    assert "agg/top1: is for sglang, not for TensorRT-LLM" in str(caught.value.diagnostics[0])
    with pytest.raises(ConfigError) as caught:
        init(tmp_path, *MODEL)
    assert "with agg/top1 or disagg/top1" in str(caught.value.diagnostics[0])


@pytest.mark.parametrize(
    "options",
    [("--top", "1"), ("--from-aiconfigurator", ".", "--backend", "pytorch")],
    ids=["top", "backend"],
)
def test_options_that_do_not_go_together_are_refused(options: tuple[str, ...]) -> None:
    done = CliRunner().invoke(command, ["init", "job", *options])
    assert done.exit_code == 2 and "--from-aiconfigurator" in done.output and not Path("job.yaml").exists()


@pytest.mark.thorough
@pytest.mark.skipif(PROGRAM is None, reason="there is no aiconfigurator: pip install aiconfigurator==0.12.0")
def test_the_real_program_writes_what_is_read(tmp_path: Path) -> None:
    words = [
        "--total-gpus=8",
        "--system=h200_sxm",
        "--backend=trtllm",
        "--isl=1000",
        "--osl=200",
        "--top-n=1",
    ]
    ask = [
        str(PROGRAM),
        "cli",
        "default",
        "--model-path",
        "Qwen/Qwen3-8B",
        *words,
        "--save-dir",
        str(tmp_path),
    ]
    subprocess.run(ask, check=True, capture_output=True)
    [result] = (tmp_path / "Qwen").iterdir()
    assert {gpus(it) for it in variants(result).values()} == {8}
