"""The tensors of the rendered models beside upstream's, release by release."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.reference import servers
from tests.reference.servers import Form, tensors
from trtllm_hpc.backends.reference import MODELS
from trtllm_hpc.runtime.model_repository.schema import schema, text_format

_toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
FACTS = _toml.loads(Path(__file__).with_name("upstream_tensors.toml").read_text(encoding="utf-8"))
RELEASES: list[str] = FACTS["releases"]
STANDS_IN_FOR = "0.16.0"

Key = tuple[str, str, str]
"""Model, ``input`` or ``output``, name."""


IMAGES = "no image or video comes out of preprocessing, since none goes in"
DIFFERENCES: Mapping[Key, str] = {
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
"""How the models differ from the release that they stand in for."""

OTHER_RELEASES: Mapping[tuple[str, str, str, str], str] = {
    ("", "0.6.1", "*", "UINT32"): "became INT32 in 0.7",
    ("", "0.5.0", "text_output", "[-1, -1]"): "lost its second dimension in 0.6",
    ("", "0.5.0", "OUTPUT", "[-1, -1]"): "lost its second dimension in 0.6",
    ("", "0.14.0", "image_input", "rank"): "got a dimension for several images in 0.15",
    ("0.17.0", "", "context_logits", "$logits_datatype"): "a placeholder since 0.17, FP32 by default",
    ("0.17.0", "", "generation_logits", "$logits_datatype"): "a placeholder since 0.17, FP32 by default",
    ("0.17.0", "", "draft_logits", "$logits_datatype"): "a placeholder since 0.17, FP32 by default",
    ("", "", "encoder_input_features", "$encoder_input_features_data_type"): "as in DIFFERENCES",
}
"""What clients of other releases find otherwise: first and last release, name, what differs, and why."""


def version(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def is_between(first: str, release: str, last: str) -> bool:
    return (not first or version(first) <= version(release)) and (
        not last or version(release) <= version(last)
    )


def upstream(release: str) -> dict[Key, Form]:
    """Every tensor of a release."""
    found = {}
    for model in MODELS:
        for kind in ("input", "output"):
            for name, forms in FACTS[model][kind].items():
                for form in forms:
                    between, _, rest = form.partition(" ")
                    first, _, last = between.partition("..")
                    if is_between(first, release, last):
                        found[model, kind, name] = _form(rest)
    return found


def _form(text: str) -> Form:
    kind, _, rest = text.partition(" [")
    dims, _, flags = rest.partition("]")
    return Form(kind, tuple(map(int, dims.split(", "))), "optional" in flags, "scalar" in flags)


def test_every_tensor_is_that_of_the_release_which_it_stands_in_for() -> None:
    theirs, ours = upstream(STANDS_IN_FOR), tensors()
    differing = {key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key)}
    assert differing == set(DIFFERENCES)


@pytest.mark.parametrize("release", RELEASES)
def test_clients_of_every_release_find_the_tensors_that_they_know(release: str) -> None:
    """Of the tensors that both releases have; upstream's own comings and goings are no fault of ours."""
    ours, known = tensors(), upstream(STANDS_IN_FOR)
    for key, form in upstream(release).items():
        if key not in known or DIFFERENCES.get(key, "").startswith(("belongs", "no image")):
            continue
        for difference in _differences(form, ours[key]):
            assert _is_listed(release, key[2], difference), f"{release}: {key}: {difference}"


def test_no_listed_difference_is_out_of_date() -> None:
    ours = tensors()
    for first, last, name, what in OTHER_RELEASES:
        assert any(
            what in _differences(form, ours[key])
            for release in RELEASES
            if is_between(first, release, last)
            for key, form in upstream(release).items()
            if key in ours and name in ("*", key[2])
        ), (name, what)


def _differences(theirs: Form, ours: Form) -> list[str]:
    """What a client notices. A scalar is one to the model only; -1 takes any size."""
    found = [] if theirs.type == ours.type else [theirs.type]
    if len(theirs.dims) != len(ours.dims):
        found.append(str(list(theirs.dims)) if len(theirs.dims) < 3 else "rank")
    elif any(-1 not in pair and len(set(pair)) > 1 for pair in zip(theirs.dims, ours.dims, strict=True)):
        found.append(str(list(theirs.dims)))
    if theirs.is_optional and not ours.is_optional:
        found.append("is not optional")
    return found


def _is_listed(release: str, name: str, difference: str) -> bool:
    return any(
        is_between(first, release, last) and what == difference and entry in ("*", name)
        for first, last, entry, what in OTHER_RELEASES
    )


@pytest.mark.parametrize(("instances", "ordered"), [(1, False), (2, True)])
def test_texts_of_a_stream_keep_their_order_whatever_the_number_of_instances(
    instances: int, ordered: bool
) -> None:
    """One instance keeps it by itself, and faster; ``test_upstream`` sees four do so."""
    text = servers.config("postprocessing", Path("/engine"), postprocessing_instances=instances)
    message = text_format().Parse(text, schema().ModelConfig())
    assert message.HasField("dynamic_batching")
    assert message.dynamic_batching.preserve_ordering == ordered
