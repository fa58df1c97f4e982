from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trtllm_hpc.errors import BuildFailed, StartFailed
from trtllm_hpc.reference import sharding, weights
from trtllm_hpc.reference.engine_config import EngineFolder, EngineInfo
from trtllm_hpc.reference.generation import GenerationRequest
from trtllm_hpc.reference.world import World

from ..conftest import LIMITS, build_engine, save_model
from ..oracle import generate
from ..two_processes import answers_of_two

pytestmark = pytest.mark.model

PROMPT = [1, 17, 300, 42, 511, 8]
ALONE = World(0, 1, 0, None)


def load(folder: Path, world: World = ALONE) -> Any:
    engine = EngineFolder(folder)
    return weights.load_model(engine, EngineInfo.read(engine), world)


def sizes(engine: Path) -> list[int]:
    return sorted(file.stat().st_size for file in engine.glob("rank*.safetensors"))


def check_two(engine: Path, folder: Path, model: Any) -> None:
    """Two ranks of an engine generate what the whole model does."""
    import torch

    request = GenerationRequest(tuple(PROMPT), 24, return_log_probs=True)
    [answer] = answers_of_two(engine, folder, [[request]])
    tokens, _ = continued(model)
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0, len(PROMPT) - 1 : -1]
    new = tokens[len(PROMPT) :]
    assert answer["tokens"] == [new]
    expected = logits.log_softmax(-1)[range(len(new)), new]
    assert answer["log_probs"][0] == pytest.approx(expected.tolist(), abs=1e-4)


def build_from(model: Any, folder: Path, tensor_parallel: int) -> Path:
    """An engine of a model that transformers has made here."""
    source = save_model(model, folder / "source")
    options = ("--model", str(source), *LIMITS)
    return build_engine(folder / "engine", *options, tensor_parallel=tensor_parallel)


def qwen(**changes: Any) -> Any:
    """A small Qwen 2: biases at some projections, and output embeddings tied to the input's."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen2Config(
        **{**shape, "num_key_value_heads": 2, "vocab_size": 512, "initializer_range": 0.3, **changes},
        tie_word_embeddings=True,
        max_position_embeddings=512,
    )
    model = Qwen2ForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return model


def continued(model: Any) -> tuple[list[int], Any]:
    import torch

    with torch.no_grad():
        return PROMPT + generate(model, PROMPT, 24)[0], model(torch.tensor([PROMPT])).logits[0, -1]


def test_a_single_rank_computes_what_the_whole_model_does(engines: dict[int, Path], plain_model: Any) -> None:
    import torch

    tokens, logits = continued(load(engines[1]))
    expected_tokens, expected_logits = continued(plain_model)
    assert tokens == expected_tokens
    assert torch.equal(logits, expected_logits)


def test_two_ranks_compute_what_one_does(engines: dict[int, Path], plain_model: Any, tmp_path: Path) -> None:
    check_two(engines[2], tmp_path, plain_model)


def test_two_ranks_with_biases_and_tied_embeddings(tmp_path: Path) -> None:
    model = qwen()
    check_two(build_from(model, tmp_path, 2), tmp_path, model)


def test_tied_embeddings_are_stored_and_kept_once(tmp_path: Path) -> None:
    model = qwen()
    engine = build_from(model, tmp_path, 1)
    loaded = load(engine)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    whole = sum(parameter.nbytes for parameter in model.parameters())
    assert sizes(engine)[0] < whole * 1.05
    assert continued(loaded)[0] == continued(model)[0]


def test_each_rank_has_its_slices_only(engines: dict[int, Path]) -> None:
    whole, halves = sizes(engines[1]), sizes(engines[2])
    assert len(whole) == 1 and len(halves) == 2
    # The embeddings, a twenty-fifth of this model, are whole at every rank.
    assert max(halves) < whole[0] * 0.56


def test_loading_takes_little_more_memory_than_the_slices(tmp_path: Path) -> None:
    model = ("--synthetic", "llama-170m", "--dtype", "bfloat16")
    engine = build_engine(tmp_path / "engine", *model, *LIMITS, tensor_parallel=2)
    measured = subprocess.run([sys.executable, "-c", _MEASURE, str(engine)], capture_output=True, text=True)
    assert measured.returncode == 0, measured.stderr
    slices = sizes(engine)[0]
    assert slices * 0.9 < int(measured.stdout) < slices * 1.2


_MEASURE = """
import re, sys
from pathlib import Path
import torch
from transformers import LlamaForCausalLM
from trtllm_hpc.reference import weights
from trtllm_hpc.reference.engine_config import EngineFolder, EngineInfo
from trtllm_hpc.reference.generation import GenerationRequest
from trtllm_hpc.reference.world import World

def peak():  # bytes; unlike getrusage's, it does not count what ran before exec
    return int(re.search("VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

engine = EngineFolder(sys.argv[1])
weights._join_ranks = lambda *_: None  # this rank is by itself
before = peak()
model = weights.load_model(engine, EngineInfo.read(engine), World(1, 2, 1, None))
for parameter in model.parameters():  # touch every page
    parameter.max()
print(peak() - before)
"""


@pytest.mark.parametrize(
    ("size", "sentence"),
    [(1, "was built for 2 ranks; 1 were started"), (3, "was built for 2 ranks; 3 were started")],
)
def test_another_world_is_refused(engines: dict[int, Path], size: int, sentence: str) -> None:
    with pytest.raises(StartFailed, match=sentence):
        load(engines[2], World(0, size, 0, None))


def test_missing_file_is_named(engines: dict[int, Path], tmp_path: Path) -> None:
    engine = shutil.copytree(engines[1], tmp_path / "engine")
    (engine / "rank0.safetensors").unlink()
    with pytest.raises(StartFailed, match=r"there is no .*rank0\.safetensors\.\n.*build the engine again"):
        load(engine)


def test_file_of_another_engine_is_refused(engines: dict[int, Path], tmp_path: Path) -> None:
    engine = shutil.copytree(engines[1], tmp_path / "engine")
    shutil.copy(engines[2] / "rank0.safetensors", engine)
    with pytest.raises(StartFailed, match=r"rank0\.safetensors is not of this engine: .* has the shape"):
        load(engine)


def test_half_a_file_is_refused(engines: dict[int, Path], tmp_path: Path) -> None:
    engine = shutil.copytree(engines[1], tmp_path / "engine")
    os.truncate(engine / "rank0.safetensors", 1_000_000)
    with pytest.raises(StartFailed, match=r"rank0\.safetensors cannot be read"):
        load(engine)


def test_unknown_style_of_cutting_is_refused_by_name(
    plain_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plain_model._tp_plan, "model.layers.*.mlp", "moe_tp_experts")
    with pytest.raises(BuildFailed, match=r"cuts model\.layers\.\*\.mlp in the style moe_tp_experts"):
        sharding.check(plain_model, 2)
    sharding.check(plain_model, 1)


def test_size_that_cannot_be_cut_is_refused_by_name() -> None:
    with pytest.raises(BuildFailed, match=r"mlp\.gate_proj\.weight has 97 rows or columns"):
        sharding.check(qwen(intermediate_size=97), 2)
