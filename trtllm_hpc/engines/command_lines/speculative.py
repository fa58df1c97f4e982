"""Speculative decoding: with which options ``trtllm-build`` builds a target of draft tokens.

Sources: the README of examples/lookahead (0.11 to 1.0), and docs/source/advanced/speculative-decoding.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines.command_lines.option_table import OptionRequest, same

DRAFT_LENGTH = "--max_draft_len"
EXTERNAL = "draft_tokens_external"
"""The mode whose prompts are computed over the paged KV cache, too, as upstream's guides want it."""


def requests(job: JobFile) -> Iterator[OptionRequest]:
    """Return the requests of ``engine.speculative``."""
    wanted = job.engine.speculative
    if wanted is None:
        return
    modes = {EXTERNAL: EXTERNAL, "lookahead": "lookahead_decoding"}
    known = same("--speculative_decoding_mode", "build", translate=modes)
    # 0.9 knows a target model by its draft length alone.
    needed = wanted.mode != EXTERNAL or wanted.max_draft_len is None
    yield OptionRequest("engine.speculative.mode", wanted.mode, known, needed=needed)
    if wanted.mode == EXTERNAL and job.engine.paged_context_fmha is None:
        yield OptionRequest("engine.speculative.mode", True, same("--use_paged_context_fmha", "build"))
    if wanted.max_draft_len is not None:
        lengths = same(DRAFT_LENGTH, "build", "build_py")
        yield OptionRequest("engine.speculative.max_draft_len", wanted.max_draft_len, lengths)
