"""What the reference backend would compute wrongly is refused when its engine is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.reference import attention, build, servable, synthetic

from ..conftest import LIMITS, save_model

pytestmark = pytest.mark.model

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "eos_token_id": 2,
}


def make(kind: str, **changes: Any) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **changes})
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Qwen3", {"head_dim": 16}),
        ("Gemma", {"head_dim": 16}),
        ("Mistral", {"sliding_window": 4096}),
        ("OPT", {}),
    ],
)
def test_other_models_than_llama_compute_the_same_in_pages(kind: str, changes: dict[str, Any]) -> None:
    model = make(kind, **changes)
    own = model.config._attn_implementation
    assert servable.difference(model) is None
    assert model.config._attn_implementation == own


@pytest.mark.parametrize("dtype", build.DTYPES)
def test_attention_that_is_wrong_is_seen(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = synthetic.make_model(seed=0, dtype=dtype, max_seq_len=128).eval()
    assert servable.difference(model) is None
    right: Any = attention.attend

    def without_mask(*arguments: Any, **more: Any) -> Any:
        return right(*arguments[:4], None, **more)

    monkeypatch.setattr(attention, "attend", without_mask)
    assert "of their spread" in (servable.difference(model) or "")


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        (
            "Mistral",
            {"sliding_window": 64},
            "attends to the last 64 tokens only, fewer than --max-seq-len 512",
        ),
        ("Gemma2", {"head_dim": 16}, "limits the scores of its attention"),
        (
            "GptOss",
            {"head_dim": 16, "sliding_window": 512, "num_local_experts": 4, "num_experts_per_tok": 2},
            "has sinks",
        ),
        ("Mamba", {}, "does not let its attention be replaced"),
    ],
)
def test_what_is_no_attention_over_all_tokens_is_refused(
    kind: str, changes: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, output = save_model(make(kind, **changes), tmp_path / "model"), tmp_path / "engine"
    arguments = ["--output", str(output), "--model", str(model), "--tensor-parallel", "1", *LIMITS]
    assert build.main(arguments) == ExitCode.BUILD
    assert reason in capsys.readouterr().err
    assert not output.exists()
