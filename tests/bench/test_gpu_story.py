"""The page about GPUs is made of what was measured, and the benchmark judges it rightly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_story
from benchmarks.story.bounds import verdicts
from benchmarks.story.figures import Figures, NotComparable, Record, Settings
from benchmarks.story.page import page
from benchmarks.story.stories import STORIES, Story
from trtllm_hpc.cli import main

SETTINGS = Settings("llama-1b", "bfloat16", 128, 128, 4096, (1, 32), 6.0)
GPU = "NVIDIA H200, 580.1, 143771 MiB"
RATES = {
    ("tensorrt_llm", False): (400.0, 10_000.0),
    ("tensorrt_llm", True): (380.0, 9_000.0),
    ("ensemble", True): (342.0, 6_300.0),
    ("tensorrt_llm_bls", True): (342.0, 6_300.0),
}


def level(model: str, streamed: bool, concurrency: int, rate: float, itl_p99_ms: float = 5.0) -> Record:
    found: Record = {
        "model": model,
        "streamed": streamed,
        "concurrency": concurrency,
        "output_tokens_per_s": rate,
        "requests": 20,
        "output_tokens": {"mean": 128.0},
        "latency_from_send_ms": {"mean": concurrency * 128e3 / rate},
        "findings": [],
    }
    times = {"ttft_from_send_ms": {"p50": 7.5, "p99": 11.0}, "itl_ms": {"p50": 2.5, "p99": itl_p99_ms}}
    return found | times if streamed else found


def start(libraries_s: float, load_s: float) -> Record:
    return {
        "built": True,
        "phases_s": {"submit and queue": 1.0, "load": load_s, "total": 1.0 + load_s},
        "loading": ["weights loaded in 2.0 s"],
        "libraries_s": libraries_s,
        "weights_s": 2.0,
    }


def told(tmp_path: Path, gpu: str | None = GPU) -> Figures:
    """A story of one GPU; at 32 ``ensemble`` has 0.7 of the core model's rate, and 0.8 is the bound."""
    rank = {"rank": 0, "host": "n1", "gpu_models": [gpu]} if gpu else {"rank": 0, "host": "n1"}
    record: Record = {
        "title": "one GPU",
        "settings": {
            "measured_at": "2026-11-22",
            "seconds": 6.0,
            "concurrency": [1, 32],
            "long_prompt": 4096,
        },
        "starts": [start(10.0, 30.0), start(10.0, 15.0)],
        "levels": [
            level(model, streamed, count, rate)
            for (model, streamed), rates in RATES.items()
            for count, rate in zip((1, 32), rates, strict=True)
        ],
        "long_prompts": {
            "streams": 8,
            "alone": level("tensorrt_llm", True, 8, 3000.0, itl_p99_ms=4.0),
            "beside": level("tensorrt_llm", True, 8, 2000.0, itl_p99_ms=14.0),
            "prompt": level("tensorrt_llm", True, 1, 10.0),
        },
        "provenance": {
            "server": {"ranks": [rank], "nodes": ["n1"], "world_size": 1},
            "client": {"cpu": "a processor", "cpus_of_host": 16},
            "engine": {"versions": {"torch": "2.11"}},
        },
    }
    return Figures(tmp_path / "gpu.json", SETTINGS, {"tp1": record})


def test_bounds_are_ratios_of_what_was_measured(tmp_path: Path) -> None:
    found = {verdict.what: (round(verdict.value, 2), verdict.kept) for verdict in verdicts(told(tmp_path))}
    assert found == {
        "tensorrt_llm, streamed over whole answers, 1 at once": (0.95, True),
        "tensorrt_llm, streamed over whole answers, 32 at once": (0.9, True),
        "ensemble over tensorrt_llm, streamed, 1 at once": (0.9, True),
        "ensemble over tensorrt_llm, streamed, 32 at once": (0.7, False),
        "tensorrt_llm_bls over ensemble, streamed, 1 at once": (1.0, True),
        "tensorrt_llm_bls over ensemble, streamed, 32 at once": (1.0, True),
        "time to first token of a lone request, in decode steps": (3.0, True),
        "inter-token p99 beside long prompts, over that alone": (3.5, False),
        "second start: loading over importing the libraries and reading the weights": (1.25, True),
    }


def test_processors_are_not_judged(tmp_path: Path) -> None:
    assert verdicts(told(tmp_path, gpu=None)) == []


def test_the_page_has_figures_bounds_and_where_they_were_measured(tmp_path: Path) -> None:
    text = page(told(tmp_path), {"start": "gpu-start.svg"})
    assert "1 x NVIDIA H200 (143771 MiB, driver 580.1)" in " ".join(text.split())
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line]
    assert ["`tensorrt_llm`, streamed", "380", "9,000"] in rows
    assert ["`tensorrt_llm`, streamed / whole", "0.95", "0.90"] in rows
    assert ["`ensemble`, time to first token", "7.50 / 11.0", "7.50 / 11.0"] in rows
    assert ["`tp1`, second", "1.0", "15.0", "16.0"] in rows
    assert any(row[-1] == "**broken**" and row[0].startswith("ensemble over") for row in rows)
    assert "(img/gpu-start.svg)" in text
    assert max(len(line) for line in text.splitlines() if "|" not in line and "](" not in line) <= 120


def test_a_story_that_failed_and_figures_that_are_not_valid_are_named(tmp_path: Path) -> None:
    figures = told(tmp_path)
    figures.stories["tp1"]["levels"][0]["findings"] = ["3 requests were measured. Use more requests."]
    del figures.stories["tp1"]["long_prompts"]["beside"]["itl_ms"]
    figures.fail("tp2", "A sandbox needs 2 GPUs.\n  next: buy one")
    text = page(figures, {})
    assert "400\\*" in text
    assert "- `tensorrt_llm`, whole answers, 1 at once: 3 requests were measured.\n" in text
    assert "Beside prompts of 4,096 tokens, too few streams" in " ".join(text.split())
    assert "**Not complete.** A sandbox needs 2 GPUs. next: buy one" in text


def test_stories_are_added_to_figures_of_the_same_settings_only(tmp_path: Path) -> None:
    told(tmp_path).write()
    longer = Settings("llama-1b", "bfloat16", 128, 128, 4096, (1,), 60.0)
    assert Figures.read(tmp_path / "gpu.json", longer).stories.keys() == {"tp1"}
    with pytest.raises(NotComparable, match="other settings"):
        Figures.read(tmp_path / "gpu.json", Settings("tiny-llama", "bfloat16", 128, 128, 4096, (1,), 6.0))


def test_page_and_plots_are_written_again_from_the_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    told(tmp_path).write()
    arguments = ["--page-only", "--out", str(tmp_path)]
    assert gpu_story.main(arguments) == 1  # bounds are broken
    first = {file.name: file.read_bytes() for file in (tmp_path / "img").iterdir()}
    assert set(first) == {"gpu-throughput.svg", "gpu-latency.svg", "gpu-start.svg"}
    gpu_story.main(arguments)
    assert {file.name: file.read_bytes() for file in (tmp_path / "img").iterdir()} == first


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--stories", "tp1,tp9"), "tp9: choose from tp1, tp2, tp2-two-nodes"),
        (("--model", "gpt"), "gpt is none of tiny, tiny-llama"),
        (("--concurrency", "0"), "0 is not above 0"),
    ],
)
def test_unknown_values_are_refused_with_the_known_ones(arguments: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_story", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize("story", STORIES.values(), ids=lambda story: story.name)
def test_job_files_spread_one_rank_over_each_gpu(
    story: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(story.job_file(SETTINGS))
    words = ["render", str(job), "--cluster", "sandbox", "--runs", str(tmp_path / "runs")]
    with pytest.raises(SystemExit) as left:
        main([*words, "--set", f"cluster.gpus_per_node={story.gpus_per_node}"])
    assert left.value.code == 0, capsys.readouterr().err
    plan: Any = json.loads(next((tmp_path / "runs").glob("*/plan.json")).read_text())
    layout = plan["layout"]
    gpus = layout["gpus_per_node"] * plan["instances"]
    assert (layout["nodes"], gpus, plan["instances"]) == (story.nodes, story.gpus_per_node, story.instances)
    assert layout["world_size"] == story.tensor_parallel


def test_a_job_that_cannot_be_submitted_is_told_with_the_reason(tmp_path: Path) -> None:
    places = ["--cluster", "nowhere", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "benchmarks.gpu_story", "--stories", "tp1", "--model", "tiny", *places]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 2
    assert "tp1 FAILED: `trtllm-hpc submit" in done.stderr
    text = (tmp_path / "out" / "gpu.md").read_text()
    assert "**Not complete.**" in text
    assert "nowhere" in text
