"""How much may be asked at once: the job file's limits, and the release's where it names none."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_hpc.config.job import JobFile
from trtllm_hpc.tensorrt_llm.memory.model import ModelShape
from trtllm_hpc.tensorrt_llm.releases import Release


@dataclass(frozen=True)
class Limits:
    """What the engine's memory is sized by."""

    batch: int | None
    beams: int
    step_tokens: int | None
    """Tokens that one step computes at most."""
    request_tokens: int | None
    """Tokens of KV cache that the longest request takes, in whole blocks, with all its beams."""
    request_key: str
    """The key of the job file that decides it."""
    decoder_share: float
    """Share of the KV cache for the decoder's own tokens; the rest is for what an encoder computed."""

    @property
    def whole_batch(self) -> int | None:
        """Tokens of a batch of the longest requests."""
        return None if self.batch is None or self.request_tokens is None else self.batch * self.request_tokens


def limits_of(job: JobFile, shape: ModelShape, release: Release | None) -> Limits:
    """The limits of a job."""
    engine = job.engine
    batch = engine.max_batch_size or _default(release, "--max_batch_size")
    longest, key = _longest(job, shape, release)
    windows = job.repository.max_attention_window_size
    if windows and longest is not None:
        longest = min(longest, max(windows))
    if longest is not None:
        block = engine.tokens_per_block or _default(release, "--tokens_per_block") or 64
        longest = -(-longest // block) * block * (engine.max_beam_width or 1)
    steps = engine.max_num_tokens or _default(release, "--max_num_tokens") or 8192
    if not engine.is_tensorrt_llm and batch is not None and longest is not None:
        steps = min(steps, batch * longest)
    share = 1 - (job.repository.cross_kv_cache_fraction or 0.5) if shape.encoder is not None else 1.0
    return Limits(batch, engine.max_beam_width or 1, steps, longest, key, share)


def _longest(job: JobFile, shape: ModelShape, release: Release | None) -> tuple[int | None, str]:
    """Tokens of the longest request, and the key that says so."""
    engine = job.engine
    if engine.max_seq_len is not None:
        return engine.max_seq_len, "engine.max_seq_len"
    benchmark = job.companion.benchmark if job.companion.enabled else None
    if engine.max_input_len is not None and benchmark is not None:
        return engine.max_input_len + benchmark.max_tokens, "companion.benchmark.max_tokens"
    inputs, outputs = _default(release, "--max_input_len"), _default(release, "--max_output_len")
    if outputs is not None:  # releases before 0.11
        return (engine.max_input_len or inputs or 0) + outputs, "engine.max_seq_len"
    return _default(release, "--max_seq_len") or shape.longest, "engine.max_seq_len"


def _default(release: Release | None, option: str) -> int | None:
    """What the release's build takes for an option that is left out; ``None`` if that is not known."""
    if release is None:
        return None
    for name in ("trtllm-build", "build.py"):
        command = release.command(name)
        found = command.options.get(option) if command is not None else None
        if found is not None:
            return found.default if type(found.default) is int else None
    return None
