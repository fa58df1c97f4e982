"""Drafting tokens: each way in the words of upstream's own examples."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plan.made_steps import found, job, options, steps

HEADS = "/models/heads"


Options = dict[str, tuple[str, ...]]


def said(release: str, **speculative: Any) -> tuple[str, Options, Options]:
    """Script of the conversion, its options and those of the build."""
    convert, build = steps(job(release, engine={"dtype": "float16", "speculative": speculative}))
    script = convert.commands[0][1]
    assert isinstance(script, str)
    return script, options(convert.commands[0]), options(build.commands[0])


def test_medusa() -> None:
    """examples/medusa/README.md."""
    script, convert, build = said("0.16.0", mode="medusa", model=HEADS, heads=4, layers=1, max_draft_len=63)
    assert script.endswith("/medusa/convert_checkpoint.py")
    assert convert["--medusa_model_dir"] == (HEADS,) and convert["--num_medusa_heads"] == ("4",)
    assert convert["--num_medusa_layers"] == ("1",) and convert["--max_medusa_token_len"] == ("63",)
    assert build["--speculative_decoding_mode"] == ("medusa",)
    assert "--max_draft_len" not in build


def test_medusa_before_the_build_was_told() -> None:
    """In 0.9 the checkpoint alone tells it."""
    _, convert, build = said("0.9.0", mode="medusa", model=HEADS)
    assert "--medusa_model_dir" in convert and "--speculative_decoding_mode" not in build


def test_medusa_with_a_quantized_model() -> None:
    speculative = {"mode": "medusa", "model": HEADS, "heads": 4}
    engine = {"speculative": speculative, "quantization": {"method": "fp8"}}
    quantize, _ = steps(job("0.16.0", engine=engine))
    words = options(quantize.commands[0])
    assert words["--medusa_model_dir"] == (HEADS,) and words["--num_medusa_heads"] == ("4",)
    assert HEADS in quantize.inputs
    [problem] = found(job("0.10.0", engine=engine))
    assert problem.field == "engine.speculative.mode" and "0.10.0" in problem.message


def test_eagle() -> None:
    """examples/eagle/README.md."""
    script, convert, build = said("0.16.0", mode="eagle", model=HEADS, layers=4, max_draft_len=63)
    assert script.endswith("/eagle/convert_checkpoint.py")
    assert convert["--eagle_model_dir"] == (HEADS,)
    assert (convert["--num_eagle_layers"], convert["--max_draft_len"]) == (("4",), ("63",))
    assert build["--speculative_decoding_mode"] == ("eagle",)
    assert build["--use_paged_context_fmha"] == ("enable",)


def test_redrafter() -> None:
    """examples/redrafter/README.md."""
    _, convert, build = said("0.16.0", mode="redrafter", model=HEADS, heads=4, max_draft_len=5)
    assert convert["--drafter_model_dir"] == (HEADS,) and convert["--redrafter_num_beams"] == ("4",)
    assert convert["--redrafter_draft_len_per_beam"] == ("5",)
    assert build["--speculative_decoding_mode"] == ("explicit_draft_tokens",)


def test_lookahead() -> None:
    """examples/lookahead/README.md: 83 draft tokens for a window, an n-gram and a set of 7."""
    script, _, build = said("0.16.0", mode="lookahead", max_draft_len=83)
    assert script.endswith("/llama/convert_checkpoint.py")
    assert build["--speculative_decoding_mode"] == ("lookahead_decoding",)
    assert build["--max_draft_len"] == ("83",)


def test_a_target_model() -> None:
    _, _, build = said("0.16.0", mode="draft_tokens_external", max_draft_len=10)
    assert build["--speculative_decoding_mode"] == ("draft_tokens_external",)
    assert (build["--max_draft_len"], build["--use_paged_context_fmha"]) == (("10",), ("enable",))
    _, _, build = said("0.9.0", mode="draft_tokens_external", max_draft_len=10)
    assert build["--max_draft_len"] == ("10",) and "--speculative_decoding_mode" not in build


@pytest.mark.parametrize(
    ("release", "mode", "first"),
    [("0.14.0", "eagle", "0.15.0"), ("0.11.0", "redrafter", "0.12.0"), ("0.10.0", "lookahead", "0.10.0"),
     ("0.7.1", "medusa", "0.8.0")],
)  # fmt: skip
def test_a_way_that_came_later(release: str, mode: str, first: str) -> None:
    speculative = {"mode": mode, "max_draft_len": 10, **({} if mode == "lookahead" else {"model": HEADS})}
    problems = found(job(release, engine={"speculative": speculative}))
    assert any(problem.field.endswith(".mode") and first in problem.message for problem in problems)


@pytest.mark.parametrize(
    ("speculative", "key"),
    [
        ({"mode": "medusa"}, "engine.speculative.model"),
        ({"mode": "lookahead"}, "engine.speculative.max_draft_len"),
        ({"mode": "draft_tokens_external"}, "engine.speculative.max_draft_len"),
        ({"mode": "lookahead", "max_draft_len": 10, "model": HEADS}, "engine.speculative.model"),
    ],
)
def test_what_a_way_needs(speculative: dict[str, Any], key: str) -> None:
    [problem] = found(job("0.16.0", engine={"speculative": speculative}))
    assert problem.field == key


def test_eagle_s_prompts_are_computed_over_the_paged_cache() -> None:
    engine = {"speculative": {"mode": "eagle", "model": HEADS}, "paged_context_fmha": False}
    [problem] = found(job("0.16.0", engine=engine))
    assert problem.field == "engine.paged_context_fmha"
