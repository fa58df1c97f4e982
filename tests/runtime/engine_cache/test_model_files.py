"""What tells two models apart, and what does not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.runtime.engine_cache.builds import make_model, safetensors
from trtllm_hpc.runtime.engine_cache.keys import SAMPLE_BYTES, SAMPLES, ModelUnreadable, revision_of


def test_the_same_files_elsewhere_are_the_same_model(tmp_path: Path) -> None:
    model = make_model(tmp_path / "one", tokenizer__json="{}")
    shutil.copytree(model, tmp_path / "two")
    os.utime(tmp_path / "two" / "config.json", (0, 0))
    assert revision_of(model) == revision_of(tmp_path / "two")
    (tmp_path / "link").symlink_to(model)
    assert revision_of(model) == revision_of(tmp_path / "link")


def test_what_no_build_reads_does_not_count(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    before = revision_of(model)
    (model / ".cache").mkdir()
    (model / ".cache" / "lock").write_text("x")
    (model / ".gitattributes").write_text("x")
    (model / "README.md").write_text("words")
    assert revision_of(model) == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b'{"architectures": ["MixtralForCausalLM"]}'),
        ("tokenizer.json", b"{}"),
        ("generation_config.json", b"{}"),
        ("modeling_custom.py", b"pass"),
        ("original/params.json", b"{}"),
    ],
)
def test_what_a_build_may_read_counts(tmp_path: Path, name: str, content: bytes) -> None:
    model = make_model(tmp_path / "model")
    before = revision_of(model)
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).write_bytes(content)
    assert revision_of(model) != before


def test_a_fine_tuned_tensor_is_seen_though_no_size_changes(tmp_path: Path) -> None:
    """Names, sizes and every small file of a fine-tuned model are its parent's."""
    tensors = {f"layer{number}": bytes([number]) * 50_000 for number in range(40)}
    parent = make_model(tmp_path / "parent", model__safetensors=safetensors(tensors))
    for number in (0, 17, 39):
        tuned = {**tensors, f"layer{number}": bytes([200 + number]) * 50_000}
        child = make_model(tmp_path / "child", model__safetensors=safetensors(tuned))
        assert revision_of(child) != revision_of(parent), number


def test_a_part_of_an_old_checkpoint_is_seen(tmp_path: Path) -> None:
    size = SAMPLES * SAMPLE_BYTES * 10
    parent = make_model(tmp_path / "parent", pytorch_model__bin=bytes(size))
    for begin in (0, size // 3, size - size // SAMPLES):
        changed = bytearray(size)
        changed[begin : begin + size // SAMPLES] = b"\1" * (size // SAMPLES)
        child = make_model(tmp_path / "child", pytorch_model__bin=bytes(changed))
        assert revision_of(child) != revision_of(parent), begin


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnreadable, match=r"nowhere is not there"):
        revision_of(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelUnreadable, match="contains no files"):
        revision_of(tmp_path / "empty")
    broken = make_model(tmp_path / "broken")
    (broken / "model-2.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(ModelUnreadable, match=r"model-2.safetensors is not there"):
        revision_of(broken)
