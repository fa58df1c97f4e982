from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.reference import build

from .conftest import LIMITS, build_engine, build_tiny, save_model
from .oracle import Oracle

pytestmark = pytest.mark.model

TINY = ("--synthetic", "tiny-llama", *LIMITS)


def weights_hash(engine: Path) -> str:
    return hashlib.sha256((engine / "model" / "model.safetensors").read_bytes()).hexdigest()


def merges(engine: Path) -> Any:
    return json.loads((engine / "tokenizer" / "tokenizer.json").read_text())["model"]["merges"]


def test_the_seed_decides_the_weights(engines: dict[int, Path], tmp_path: Path) -> None:
    assert weights_hash(engines[1]) == weights_hash(build_tiny(tmp_path / "again", tensor_parallel=1))
    other = build_tiny(tmp_path / "other", tensor_parallel=1, seed=1)
    assert weights_hash(engines[1]) != weights_hash(other)
    texts = {(engine / "tokenizer" / "tokenizer.json").read_text() for engine in engines.values()}
    assert len(texts) == 1


def test_a_folder_that_exists_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert build.main(["--output", str(tmp_path), "--tensor-parallel", "1", *TINY]) == ExitCode.BUILD
    assert "cannot be written" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").is_file()


def test_config_has_the_layout_of_tensorrt_llm(engines: dict[int, Path]) -> None:
    config = json.loads((engines[2] / "config.json").read_text())
    sizes = dict.fromkeys(("world_size", "tp_size", "gpus_per_node"), 2) | {"pp_size": 1, "cp_size": 1}
    assert config["pretrained_config"]["mapping"] == sizes
    assert config["pretrained_config"]["architecture"] == "LlamaForCausalLM"
    limits = {"max_batch_size": 8, "max_input_len": 96, "max_seq_len": 512, "max_num_tokens": 4096}
    assert limits.items() <= config["build_config"].items()


def test_interrupted_build_leaves_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_tiny(tmp_path / "engine", tensor_parallel=1)
    assert list(tmp_path.iterdir()) == []


def test_local_model_is_taken_as_it_is(engines: dict[int, Path], oracle: Oracle, tmp_path: Path) -> None:
    model = save_model(oracle.model, tmp_path / "a model")
    output = build_engine(tmp_path / "engine", "--model", str(model), *LIMITS)
    assert weights_hash(output) == weights_hash(engines[1])
    assert merges(output) == merges(engines[1])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--tensor-parallel", "3", *TINY], "num_attention_heads is 8"),
        (
            ["--tensor-parallel", "1", *LIMITS, "--model", "/no/such model"],
            "transformers cannot read the model in /no/such model",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build.main(["--output", str(tmp_path / "engine"), *arguments]) == ExitCode.BUILD
    error = capsys.readouterr().err
    assert error.startswith("error: ") and sentence in error
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []
