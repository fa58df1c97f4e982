"""The benchmark itself: that it measures the same work everywhere, and judges rightly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.reference.children import Task
from benchmarks.reference.lines import CONTENDERS, Line, lines
from benchmarks.reference.prepare import Facts
from benchmarks.reference.results import Results, Sample
from benchmarks.reference.show import report

ROOT = Path(__file__).parents[2]
FACTS = Facts("cpu", "two cores", "2", "5", parameters=10, weight_bytes=40, bandwidth=4000.0)


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.reference_backend", "--model", "tiny-llama", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.thorough
@pytest.mark.triton
def test_every_contender_gives_the_same_answers(tmp_path: Path) -> None:
    file, picture = tmp_path / "results.json", tmp_path / "results.svg"
    sizes = ("--prompt-tokens", "6", "--new-tokens", "8", "--rounds", "1", "--concurrency", "1,3")
    done = benchmark(*sizes, "--features", "--json", str(file), "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    samples = json.loads(file.read_text())["samples"]
    names = [line.name for line in lines(CONTENDERS, "cpu", features=True)]
    assert sorted((sample["line"], sample["concurrency"]) for sample in samples) == sorted(
        (name, count) for name in names for count in (1, 3)
    )
    assert {sample["same_answers"] for sample in samples} == {1.0}
    assert {sample["tokens"] / sample["concurrency"] for sample in samples} == {2 * 8}
    assert all(f"| {name} " in done.stdout for name in names)
    assert "</svg>" in picture.read_text()


def test_unknown_model_is_refused_with_the_known_ones() -> None:
    done = benchmark("--model", "nowhere")
    assert done.returncode == 2
    assert "nowhere is neither a folder nor one of tiny-llama" in done.stderr


def judged(**rates: float) -> Results:
    """Results of one round of 100 s at concurrency 32, by line."""
    names = {
        "triton": Line("triton", Task("triton", "")),
        "featured": Line("triton, all features", Task("triton", ""), features=True),
        "engine": Line("engine", Task("engine", "")),
        "generate": Line("generate", Task("generate", ""), is_library=True),
        "static": Line("generate, static compiled", Task("static", "")),
    }
    results = Results(FACTS, [names[name] for name in rates], [32])
    for name, rate in rates.items():
        results.samples.append(
            Sample(names[name].name, 32, round(rate * 100), 100.0, 0.0, 0.0, 0.0, 0.0, None)
        )
    return results


@pytest.mark.parametrize(
    ("rates", "kept"),
    [
        ({"triton": 90, "engine": 100, "generate": 50}, [True]),
        ({"triton": 89, "engine": 100, "generate": 50}, [False]),
        ({"triton": 89, "engine": 80, "generate": 100}, [False]),
        # A batch that nobody can join is no bar.
        ({"triton": 90, "engine": 100, "static": 1000}, [True]),
        # The engine has the same features, so these are judged by the library alone.
        ({"triton": 95, "featured": 45, "engine": 100, "generate": 50}, [True, True]),
        ({"triton": 95, "featured": 44, "engine": 100, "generate": 50}, [True, False]),
        ({"engine": 100, "generate": 50}, []),
    ],
)
def test_triton_is_judged_by_the_fastest_in_one_process(rates: dict[str, float], kept: list[bool]) -> None:
    assert [verdict.is_kept for verdict in judged(**rates).verdicts()] == kept


def test_report_shows_the_middle_round_with_its_spread_and_the_ratios() -> None:
    results = judged(triton=90, engine=100, generate=60)
    for tokens in (8000, 12000):
        results.samples.append(Sample("triton", 32, tokens, 100.0, 0.25, 1.5, 0.5, 0.75, None))
    text = report(results)
    assert "90.0 (80.0-120) |" in text
    assert "| triton / engine              | 0.90 |" in text
    assert "| triton / best of the library | 1.50 |" in text
    assert "at most 100 tokens/s at concurrency 1" in text
    assert "Triton's client: at most 25.0% of a core" in text
    assert "75.0% at most" in text
    assert "kept: triton / engine = 0.90" in text
