"""What is known of the placeholders of upstream's templates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trtllm_hpc.tensorrt_llm.releases.data_files import read_data, value_at
from trtllm_hpc.tensorrt_llm.releases.placeholders import (
    Kind,
    Value,
    known_placeholders,
    placeholders_of,
)

GROUP = "inflight_batcher_llm"
TEMPLATES = [(group, model) for group, models in read_data("placeholders").items() for model in models]

# The structural ones by release, as upstream's tags have them (an unfilled one stops Triton).
_0_5 = {"decoupled_mode"}
_0_6 = _0_5 | {"triton_max_batch_size", "max_queue_delay_microseconds"}
_0_10 = _0_6 | {"triton_backend"}
_0_12 = _0_10 | {"max_queue_size"}
_0_15 = _0_12 | {"encoder_input_features_data_type"}
_0_17 = _0_15 | {"logits_datatype"}
_1_1 = _0_17 | {"prompt_embedding_table_data_type"}
_BLS_0_7 = {"triton_max_batch_size", "decoupled_mode", "bls_instance_count"}
_PREPROCESSING_0_7 = {"triton_max_batch_size", "preprocessing_instance_count"}
_DISAGGREGATED = {"triton_max_batch_size", "decoupled_mode", "disaggregated_serving_bls_count"}


@pytest.mark.parametrize(
    ("model", "version", "names"),
    [
        ("tensorrt_llm", "0.5.0", _0_5),
        ("tensorrt_llm", "0.6.1", _0_6),
        ("tensorrt_llm", "0.9.0", _0_6),
        ("tensorrt_llm", "0.10.0", _0_10),
        ("tensorrt_llm", "0.12.0", _0_12),
        ("tensorrt_llm", "0.14.0", _0_12),
        ("tensorrt_llm", "0.16.0", _0_15),
        ("tensorrt_llm", "0.17.0.post1", _0_17),
        ("tensorrt_llm", "0.21.0", _0_17),
        ("tensorrt_llm", "1.0.0", _0_17),
        ("tensorrt_llm", "1.2.1", _1_1),
        ("ensemble", "0.5.0", set()),
        ("ensemble", "0.6.0", {"triton_max_batch_size"}),
        ("ensemble", "0.17.0", {"triton_max_batch_size", "logits_datatype"}),
        ("preprocessing", "0.6.1", {"triton_max_batch_size"}),
        ("preprocessing", "0.7.0", _PREPROCESSING_0_7),
        ("preprocessing", "0.19.0", _PREPROCESSING_0_7 | {"max_queue_delay_microseconds", "max_queue_size"}),
        ("postprocessing", "0.7.0", {"triton_max_batch_size", "postprocessing_instance_count"}),
        ("tensorrt_llm_bls", "0.6.1", set()),
        ("tensorrt_llm_bls", "0.7.0", _BLS_0_7),
        ("tensorrt_llm_bls", "0.17.0", _BLS_0_7 | {"logits_datatype"}),
    ],
)
def test_structural_placeholders_by_release(model: str, version: str, names: set[str]) -> None:
    assert structural(version, GROUP, model) == names


@pytest.mark.parametrize(
    ("version", "names"),
    [("0.14.0", set()), ("0.15.0", _DISAGGREGATED), ("0.19.0", _DISAGGREGATED | {"logits_datatype"})],
)
def test_structural_placeholders_of_disaggregated_serving(version: str, names: set[str]) -> None:
    assert structural(version, "disaggregated_serving", "disaggregated_serving_bls") == names


def structural(version: str, group: str, model: str) -> set[str]:
    entries = read_data("placeholders")[group][model]
    return {name for name in placeholders_of(version, group, model) if entries[name].get("structural")}


def test_choices_are_the_releases() -> None:
    def choices(name: str, version: str) -> tuple[str, ...]:
        return placeholders_of(version, GROUP, "tensorrt_llm")[name].choices

    assert "lookahead" not in choices("decoding_mode", "0.15.0")
    assert "lookahead" in choices("decoding_mode", "0.16.0")
    assert "V1" in choices("batching_strategy", "0.19.0")
    assert "V1" not in choices("batching_strategy", "0.20.0")


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("int", 3, 3.0),
        ("int", 0, True),
        ("float", 1, "1"),
        ("float", 0.5, False),
        ("bool", False, 0),
        ("text", "a,b", 3),
        ("data_type", "TYPE_BF16", "bf16"),
        ("int_list", "1,2", "1, 2"),
        ("id_lists", "0,1;2,3", "0;1;"),
    ],
)
def test_values_fit_their_type(kind: Kind, good: Value, bad: Value) -> None:
    any_value = placeholders_of("0.16.0", GROUP, "tensorrt_llm")["max_beam_width"]
    placeholder = replace(any_value, type=kind, choices=())
    assert placeholder.misfit(good) is None
    assert placeholder.misfit(bad) is not None


@pytest.mark.parametrize("template", TEMPLATES, ids="/".join)
def test_every_entry_can_be_filled_and_says_where_it_was_read(template: tuple[str, str]) -> None:
    for name, entry in read_data("placeholders")[template[0]][template[1]].items():
        assert entry["source"], name
        known = known_placeholders(entry["since"], *template)[name]
        for value in (known.fallback, value_at(entry.get("default"), entry["since"])):
            assert value is None or known.misfit(value) is None, name
        # What Triton does not load without has a place, or is a tensor's data type.
        assert known.place is not None or known.type == "data_type", name
        assert not (entry.get("structural") and known.unset is not None), name
