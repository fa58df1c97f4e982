"""``runtime quantize`` on a real, small model: with a stand-in of Model Optimizer, and with itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.upstream.transformers_serve import make_model
from trtllm_hpc.errors import ExitCode

STAND_IN = Path(__file__).parent.parent / "upstream"
REAL = "TRTLLM_HPC_TEST_MODELOPT"
"""Names a folder of packages: ``pip install --no-deps --target FOLDER nvidia-modelopt==0.37.0 pulp omegaconf
antlr4-python3-runtime==4.9.3 torchprofile``, since what it depends on would pin other versions of ours."""

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantize") / "Llama, tiny"
    make_model(folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    rows = [{"article": f"the river {number}"} for number in range(3)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "b.txt").write_text("one line\n\nanother line\n")
    return folder


def run(
    model: Path, output: Path, *options: object, packages: Path | None
) -> subprocess.CompletedProcess[str]:
    words = ["--model", model, "--output", output, "--method", "fp8", *options]
    return subprocess.run(
        [sys.executable, "-m", "trtllm_hpc.runtime", "--run", output.parent, "quantize", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(packages or ""), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def quantized(output: Path) -> dict[str, str | None]:
    found = json.loads((output / "hf_quant_config.json").read_text())["quantization"]
    return {key: found[key] for key in ("quant_algo", "kv_cache_quant_algo")}


def test_a_checkpoint_is_measured_on_the_texts_and_keeps_its_tokenizer(
    model: Path, texts: Path, tmp_path: Path
) -> None:
    output = tmp_path / "quantized"
    options = ("--kv-cache", "fp8", "--calibration-dataset", texts, "--calibration-size", 4)
    done = run(model, output, *options, packages=STAND_IN)
    assert done.returncode == 0, done.stderr
    assert "calibrate: batch 4 of 4" in done.stdout and "quantized to FP8" in done.stdout
    assert quantized(output) == {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    assert {"tokenizer.json", "chat_template.jinja", "model.safetensors"} <= {
        it.name for it in output.iterdir()
    }


@pytest.mark.parametrize(
    ("files", "packages", "words"),
    [
        ({}, None, "This image has no Model Optimizer to quantize with"),
        ({}, STAND_IN, "The texts to calibrate with cannot be read"),
        ({"a.txt": "\n\n"}, STAND_IN, "has no texts (columns text, article"),
        ({"a.jsonl": "{"}, STAND_IN, "cannot be read"),
    ],
)
def test_what_is_missing_is_told(
    files: dict[str, str], packages: Path | None, words: str, model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    done = run(model, tmp_path / "quantized", "--calibration-dataset", folder, packages=packages)
    assert done.returncode == ExitCode.BUILD, done.stderr
    assert words in done.stderr and "  next: " in done.stderr and "Traceback" not in done.stderr


@pytest.mark.thorough
@pytest.mark.skipif(REAL not in os.environ, reason=f"{REAL} names no folder with nvidia-modelopt")
def test_model_optimizer_itself_does_the_same(model: Path, texts: Path, tmp_path: Path) -> None:
    output = tmp_path / "quantized"
    options = ("--kv-cache", "fp8", "--calibration-dataset", texts)
    done = run(model, output, *options, packages=Path(os.environ[REAL]))
    assert done.returncode == 0, done.stderr
    assert quantized(output) == {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
