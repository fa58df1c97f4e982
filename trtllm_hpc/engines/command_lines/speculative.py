"""Speculative decoding: which programs convert the model, with which options.

Sources: the READMEs of examples/medusa, examples/eagle, examples/redrafter and
examples/lookahead (0.8 to 1.0), and docs/source/advanced/speculative-decoding.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines.command_lines.option_table import OptionMapping, OptionRequest, Role, same


@dataclass(frozen=True)
class Mode:
    """One method of speculative decoding."""

    build: str
    """``trtllm-build --speculative_decoding_mode``."""
    examples: str | None = None
    """The folder of examples whose ``convert_checkpoint.py`` joins model and heads; ``None``: the model's."""
    weights: str | None = None
    """That program's option for the heads' folder."""
    paged_context_fmha: bool = False
    """Whether upstream's guides want prompts computed over the paged KV cache, too."""
    needs_length: bool = False
    """Whether only ``max_draft_len`` tells how many tokens are drafted."""
    draft_length: tuple[str, ...] = ("--max_draft_len", "--max_medusa_token_len")


MODES: Mapping[str, Mode] = {
    "draft_tokens_external": Mode("draft_tokens_external", paged_context_fmha=True, needs_length=True),
    "medusa": Mode("medusa", "medusa", "--medusa_model_dir"),
    "eagle": Mode("eagle", "eagle", "--eagle_model_dir", paged_context_fmha=True),
    "lookahead": Mode("lookahead_decoding", needs_length=True),
    "redrafter": Mode(
        "explicit_draft_tokens",
        "redrafter",
        "--drafter_model_dir",
        draft_length=("--redrafter_draft_len_per_beam",),
    ),
}


NUMBERS: Mapping[str, tuple[str, ...]] = {
    "heads": ("--num_medusa_heads", "--redrafter_num_beams"),
    "layers": ("--num_medusa_layers", "--num_eagle_layers"),
    "max_non_leaves_per_layer": ("--max_non_leaves_per_layer",),
}
"""Options of keys of ``engine.speculative``, besides the length of a draft."""


def mode(job: JobFile) -> Mode | None:
    """How the job drafts tokens; ``None`` without speculative decoding."""
    return MODES[job.engine.speculative.mode] if job.engine.speculative is not None else None


def requests(job: JobFile) -> Iterator[OptionRequest]:
    """Return the requests of ``engine.speculative``."""
    wanted, how = job.engine.speculative, mode(job)
    if wanted is None or how is None:
        return
    # 0.9 knows a target model by its draft length alone, and Medusa's by its checkpoint.
    implied = wanted.mode == "medusa" or wanted.max_draft_len is not None
    known = same("--speculative_decoding_mode", "build", translate={wanted.mode: how.build})
    needed = not (implied and wanted.mode in ("medusa", "draft_tokens_external"))
    yield OptionRequest("engine.speculative.mode", wanted.mode, known, needed=needed)
    if how.paged_context_fmha and job.engine.paged_context_fmha is None:
        yield OptionRequest("engine.speculative.mode", True, same("--use_paged_context_fmha", "build"))
    if how.weights is not None and wanted.model is not None:
        heads = same(how.weights, "convert", "quantize")
        yield OptionRequest("engine.speculative.model", wanted.model, heads)
    roles: tuple[Role, ...] = ("convert", "quantize", "build", "build_py")
    for key, options in {"max_draft_len": how.draft_length, **NUMBERS}.items():
        value = getattr(wanted, key)
        if value is not None:
            mappings = tuple(OptionMapping(role, option) for role in roles for option in options)
            yield OptionRequest(f"engine.speculative.{key}", value, mappings)
