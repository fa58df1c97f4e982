"""The tensors of the rendered models beside those of the release that they stand in for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.reference import servers
from tests.reference.servers import Form, tensors
from trtllm_hpc.backends.reference import MODELS
from trtllm_hpc.runtime.model_repository.writer import schema, text_format

_toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
FACTS = _toml.loads(Path(__file__).with_name("upstream_tensors.toml").read_text(encoding="utf-8"))

IMAGES = "no image or video comes out of preprocessing, since none goes in"
DIFFERENCES: Mapping[tuple[str, str, str], str] = {
    ("tensorrt_llm", "input", "encoder_input_features"): "the type is a placeholder: FP16, a job's default",
    ("tensorrt_llm", "output", "context_phase_params"): "belongs to disaggregated serving, which is refused",
    ("preprocessing", "output", "OUT_PROMPT_TABLE_EXTRA_IDS"): "belongs to prompt tuning, which is refused",
    ("preprocessing", "output", "PIXEL_VALUES"): IMAGES,
    ("preprocessing", "output", "ASPECT_RATIO_IDS"): IMAGES,
    ("preprocessing", "output", "ASPECT_RATIO_MASK"): IMAGES,
    ("preprocessing", "output", "CROSS_ATTENTION_MASK"): IMAGES,
    ("preprocessing", "output", "IMAGE_SIZES"): IMAGES,
    ("preprocessing", "output", "IS_VIDEO_INPUT"): IMAGES,
}
"""Model, ``input`` or ``output``, and name of each tensor that differs, and why."""


def _form(text: str) -> Form:
    kind, _, rest = text.partition(" [")
    dims, _, flags = rest.partition("]")
    return Form(kind, tuple(map(int, dims.split(", "))), "optional" in flags, "scalar" in flags)


def test_every_tensor_is_that_of_the_release_which_it_stands_in_for() -> None:
    theirs = {
        (model, kind, name): _form(form)
        for model in MODELS
        for kind in ("input", "output")
        for name, form in FACTS[model][kind].items()
    }
    ours = tensors()
    differing = {key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key)}
    assert differing == set(DIFFERENCES)


@pytest.mark.parametrize(("instances", "ordered"), [(1, False), (2, True)])
def test_texts_of_a_stream_keep_their_order_whatever_the_number_of_instances(
    instances: int, ordered: bool
) -> None:
    """One instance keeps it by itself, and faster; ``test_upstream`` sees four do so."""
    text = servers.config("postprocessing", Path("/engine"), postprocessing_instances=instances)
    message = text_format().Parse(text, schema().ModelConfig())
    assert message.HasField("dynamic_batching")
    assert message.dynamic_batching.preserve_ordering == ordered
