"""What can be read out of an engine folder, and the checks that doctor and preflight share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.validation.engines import new_engine, old_engine
from trtllm_hpc.runtime.checks import (
    engine_files,
    engine_gpus_per_node,
    engine_version,
    paged_context,
    planned_version,
    shared_memory,
    tokenizer_files,
)
from trtllm_hpc.runtime.engine_config import NotAnEngine, read_engine


def test_an_engine_of_trtllm_build_is_read(tmp_path: Path) -> None:
    plugins = {"use_paged_context_fmha": True}
    engine = read_engine(new_engine(tmp_path / "e", tensor=4, pipeline=2, plugins=plugins))
    assert (engine.version, engine.world_size, engine.tensor, engine.pipeline) == ("0.16.0", 8, 4, 2)
    assert engine.gpus_per_node == 8 and engine.paged_kv_cache is True and engine.paged_context_fmha
    assert (engine.max_batch_size, engine.max_input_len, engine.max_seq_len) == (64, 1024, 2048)
    assert engine.files[-1] == "rank7.engine"


def test_an_engine_of_build_py_is_read(tmp_path: Path) -> None:
    engine = read_engine(old_engine(tmp_path / "e", tensor=2, pipeline=2))
    assert (engine.version, engine.world_size, engine.tensor, engine.pipeline) == (None, 4, 2, 2)
    assert engine.runtime_gpus_per_node == 8  # the runtime's own default
    assert (engine.max_input_len, engine.max_seq_len) == (2048, 2560)
    assert engine.files[0] == "llama_float16_tp2_pp2_rank0.engine"
    assert engine_files(engine).state == "ok"


@pytest.mark.parametrize(
    ("build", "plugins", "paged"),
    [
        ({"kv_cache_type": "PAGED"}, {}, True),
        ({"kv_cache_type": "KVCacheType.PAGED"}, {}, True),
        ({"kv_cache_type": "CONTINUOUS"}, {"paged_kv_cache": True}, False),
        ({"kv_cache_type": None}, {"paged_kv_cache": True}, True),
        ({"kv_cache_type": None}, {"paged_kv_cache": False}, False),
        ({"kv_cache_type": None}, {}, None),
    ],
)
def test_every_releases_word_for_a_paged_cache(
    tmp_path: Path, build: dict[str, Any], plugins: dict[str, Any], paged: bool | None
) -> None:
    assert read_engine(new_engine(tmp_path / "e", build=build, plugins=plugins)).paged_kv_cache is paged


def test_output_length_stands_in_for_the_whole_length_before_0_11(tmp_path: Path) -> None:
    build = {"max_seq_len": None, "max_output_len": 200}
    assert read_engine(new_engine(tmp_path / "e", build=build)).max_seq_len == 1224


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"pretrained_config": {}}', '{"builder_config": []}'])
def test_what_is_no_engine_is_told_in_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(NotAnEngine) as refused:
        read_engine(tmp_path)
    assert "does not describe an engine" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("maker", [new_engine, old_engine])
def test_every_rank_s_file_must_be_there_and_not_empty(tmp_path: Path, maker: Any) -> None:
    folder = maker(tmp_path / "e")
    engine = read_engine(folder)
    assert engine_files(engine).state == "ok"
    (folder / engine.files[2]).write_bytes(b"")
    empty = engine_files(engine)
    assert empty.state == "fail" and f"{engine.files[2]} is empty" in empty.message
    (folder / engine.files[2]).unlink()
    missing = engine_files(engine)
    assert missing.state == "fail" and f"{engine.files[2]} is missing" in missing.message


GPUS = [
    # built for, ranks, ranks a node, GPUs that a rank sees, state
    (8, 8, 8, 8, "ok"),
    (8, 4, 4, 4, "ok"),  # fewer ranks than the engine's GPUs: their number is enough
    (8, 2, 2, 1, "ok"),  # a single visible GPU is let pass
    (4, 8, 4, 4, "ok"),
    (8, 8, 4, 4, "fail"),  # nodes of 4 with the default of trtllm-build
    (4, 8, 8, 8, "fail"),  # rank 4 would share GPU 0 with rank 0
    (8, 4, 2, 8, "fail"),  # the runtime would take both nodes for one
    (8, 8, 8, 4, "fail"),
    (None, 8, 8, 8, "ok"),  # before 0.10: 8
    (None, 8, 4, 4, "fail"),
    (8, 1, 1, 1, "ok"),
]


@pytest.mark.parametrize(("built", "world", "per_node", "visible", "state"), GPUS)
def test_gpus_per_node_in_the_engine_against_the_nodes(
    tmp_path: Path, built: int | None, world: int, per_node: int, visible: int, state: str
) -> None:
    engine = read_engine(new_engine(tmp_path / "e", tensor=world, gpus_per_node=built))
    found = engine_gpus_per_node(engine, world, per_node, visible)
    assert found.state == state
    if state == "fail":
        assert f"is built for nodes of {built or 8} GPUs" in found.message
        assert found.hint is not None and "build it again with gpus_per_node" in found.hint


@pytest.mark.parametrize(
    ("engine_of", "container", "state"),
    [
        ("0.16.0", "0.16.0", "ok"),
        ("1.0.0+cu12", "1.0.0", "ok"),
        ("0.17.0", "0.17.0.post1", "warn"),
        ("1.2.0rc4", "1.2.0", "warn"),
        ("0.15.0", "0.16.0", "fail"),
        ("0.16.0", "0.16.1", "fail"),
    ],
)
def test_engine_and_container_are_named_where_they_differ(
    tmp_path: Path, engine_of: str, container: str, state: str
) -> None:
    engine = read_engine(new_engine(tmp_path / "e", version=engine_of))
    found = engine_version(engine, container)
    planned = planned_version(engine_of, container)
    assert (found.state, planned.state) == (state, state)
    if state != "ok":
        assert engine_of in found.message and container in found.message
        assert engine_of in planned.message and container in planned.message


@pytest.mark.parametrize(
    ("build", "plugins", "state"),
    [
        ({}, {"use_paged_context_fmha": True}, "ok"),
        ({}, {}, "fail"),
        ({"kv_cache_type": "CONTINUOUS"}, {"use_paged_context_fmha": True}, "fail"),
    ],
)
def test_reuse_and_chunked_context_need_paged_context_attention(
    tmp_path: Path, build: dict[str, Any], plugins: dict[str, Any], state: str
) -> None:
    engine = read_engine(new_engine(tmp_path / "e", build=build, plugins=plugins))
    found = paged_context(engine, "kv_cache.enable_block_reuse")
    assert found.state == state and "kv_cache.enable_block_reuse" in found.message


def test_shared_memory() -> None:
    assert shared_memory("n1", 4.0, 8).state == "ok"
    short = shared_memory("n1", 1.0, 8)
    assert (short.state, short.message) == (
        "fail",
        "/dev/shm on n1 has 1.00 GiB free, but 8 rank(s) need 2.00 GiB",
    )


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "qwen.tiktoken"]
)
def test_a_tokenizer_is_one_of_many_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    empty = tokenizer_files(tmp_path)
    assert empty.state == "fail" and "there is no tokenizer in" in empty.message
    (tmp_path / name).write_bytes(b"words")
    assert tokenizer_files(tmp_path).state == "ok"
