from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.reference import build
from trtllm_hpc.runtime.records import read_events

from .conftest import LIMITS, build_engine, build_tiny, save_model
from .oracle import Oracle

pytestmark = pytest.mark.model

TINY = ("--synthetic", "tiny-llama", *LIMITS)


def weights_hash(engine: Path) -> str:
    return hashlib.sha256((engine / "model" / "model.safetensors").read_bytes()).hexdigest()


def merges(engine: Path) -> Any:
    return json.loads((engine / "tokenizer" / "tokenizer.json").read_text())["model"]["merges"]


def test_same_seed_gives_same_weights_and_tokenizer(engines: dict[int, Path], tmp_path: Path) -> None:
    assert weights_hash(engines[1]) == weights_hash(build_tiny(tmp_path / "again", tensor_parallel=1))
    texts = {(engine / "tokenizer" / "tokenizer.json").read_text() for engine in engines.values()}
    assert len(texts) == 1


def test_other_seed_gives_other_weights(engines: dict[int, Path], tmp_path: Path) -> None:
    other = build_tiny(tmp_path / "engine", tensor_parallel=1, seed=1)
    assert weights_hash(engines[1]) != weights_hash(other)


def test_a_folder_that_exists_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert build.main(["--output", str(tmp_path), "--tensor-parallel", "1", *TINY]) == ExitCode.BUILD
    assert "cannot be written" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").is_file()


def test_config_has_the_layout_of_tensorrt_llm(engines: dict[int, Path]) -> None:
    config = json.loads((engines[2] / "config.json").read_text())
    assert config["pretrained_config"]["mapping"] == {
        "world_size": 2,
        "tp_size": 2,
        "pp_size": 1,
        "cp_size": 1,
        "gpus_per_node": 2,
    }
    assert config["pretrained_config"]["architecture"] == "LlamaForCausalLM"
    assert config["pretrained_config"]["dtype"] == "float32"
    assert config["build_config"] == {
        "max_batch_size": 8,
        "max_input_len": 96,
        "max_seq_len": 512,
        "max_beam_width": 1,
        "max_num_tokens": 4096,
        "plugin_config": {"tokens_per_block": 64, "lora_plugin": None},
    }


def test_interrupted_build_leaves_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_tiny(tmp_path / "engine", tensor_parallel=1)
    assert list(tmp_path.iterdir()) == []


def test_progress_is_printed_and_told_to_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    arguments = ["--output", str(tmp_path / "engine"), "--tensor-parallel", "1", *TINY, "--run", str(run)]
    assert build.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:5] for line in lines] == ["[1/5]", "[2/5]", "[3/5]", "[4/5]", "[5/5]"]
    events = read_events(RunPaths(run), "build")
    assert [(event.name, event.data["step"], event.data["of"]) for event in events] == [
        ("progress", step, 5) for step in range(1, 6)
    ]
    assert events[1].data["message"] == "initialising weights"


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


def test_folder_that_is_no_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "perceptron"}')
    arguments = ["--output", str(tmp_path / "engine"), "--tensor-parallel", "1", *LIMITS]
    assert build.main([*arguments, "--model", str(model)]) == ExitCode.BUILD
    assert "transformers cannot read the model" in capsys.readouterr().err
    assert not (tmp_path / "engine").exists()


def test_folder_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    output = tmp_path / "file" / "engine"
    assert build.main(["--output", str(output), "--tensor-parallel", "1", *TINY]) == ExitCode.BUILD
    assert "cannot be written" in capsys.readouterr().err
