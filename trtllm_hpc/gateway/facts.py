"""What a gateway must know of the run whose server it stands in front of."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.backends import backend_of
from trtllm_hpc.config.files import read_spec
from trtllm_hpc.config.job import Serve
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.engine_config import NotAnEngine, read_engines


@dataclass(frozen=True)
class Facts:
    """The served model."""

    name: str
    """By which requests ask for it."""
    tokenizer: Path | None = None
    """Folder with ``tokenizer.json``."""
    max_seq_len: int | None = None
    """Most tokens of prompt and answer together."""
    add_special_tokens: bool = True
    """Whether texts of ``/v1/completions`` get the tokenizer's special tokens, as ``ensemble`` adds them."""
    skip_special_tokens: bool = True
    """Whether they are left out of answers."""
    max_request_mib: int = Serve.model_fields["max_request_mib"].default
    """Largest body of a request."""


def facts_of(run: RunPaths) -> Facts:
    """Return the facts of a run with an engine. Raises ConfigError if its ``spec.yaml`` cannot be read."""
    job = read_spec(run.spec)
    folder = Path(job.engine.directory) if job.engine.directory else run.engine
    repository = job.repository
    named = backend_of(job).tokenizer(job)
    max_seq_len = job.engine.max_seq_len
    with suppress(NotAnEngine):
        max_seq_len = read_engines(folder)[0].max_seq_len or max_seq_len
    return Facts(
        name=Path(job.model.path).name if job.model.path else job.model.synthetic or job.name,
        tokenizer=folder / "tokenizer" if named is None else Path(named),
        max_seq_len=max_seq_len,
        add_special_tokens=repository.add_special_tokens is not False,
        skip_special_tokens=repository.skip_special_tokens is not False,
        max_request_mib=job.serve.max_request_mib,
    )
