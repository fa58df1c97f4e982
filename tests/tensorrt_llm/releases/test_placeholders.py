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
