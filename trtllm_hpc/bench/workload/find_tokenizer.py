"""Which tokenizer counts: the one that cuts texts as the server does, by the quickest way to it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.bench.workload.local_tokenizer import LocalTokenizer, UnusableTokenizer
from trtllm_hpc.bench.workload.served_tokenizer import ServedTokenizer
from trtllm_hpc.bench.workload.tokenizer import Tokenizer
from trtllm_hpc.bench.workload.vocabulary import Vocabulary, of_config
from trtllm_hpc.bench.workload.wanted import refused
from trtllm_hpc.config.benchmark import Workload
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.tensorrt_llm.model_config import read_model_config

_PROBES = ("Hello world", " two  spaces\n", "naïve café, 12345!", "The quick brown fox")
"""Texts that differing tokenizers hardly cut alike."""


@dataclass(frozen=True)
class Tokenization:
    """What is known of the served model's tokens."""

    tokenizer: Tokenizer | None = None
    vocabulary: Vocabulary | None = None
    note: str | None = None
    """What whoever reads the figures must know of it."""


def find_tokenizer(
    workload: Workload, folders: Sequence[Path] = (), endpoint: Endpoint | None = None, timeout_s: float = 30
) -> Tokenization:
    """The tokenizer that counts, and the ordinary ids of the model.

    A tokenizer that this machine can read is quick, but only right if it cuts
    as the server does: where the server has ``preprocessing``, the two are
    compared, and at a difference the server counts.

    Args:
        folders: of the model and of its engine; the first with a tokenizer is
            taken, the first with a ``config.json`` tells the vocabulary's size.
        endpoint: a server that may have ``preprocessing``.

    Raises:
        ConfigError: the settings name a folder without a tokenizer that can be read.
    """
    local = _local(workload, folders)
    served = _served(endpoint, timeout_s)
    tokenizer: Tokenizer | None = local or served
    note = None
    if local is not None and served is not None:
        tokenizer = _agreeing(local, served)
        if tokenizer is served:
            note = (
                f"The tokenizer in {local.name} cuts texts otherwise than the server, which is asked instead."
            )
    return Tokenization(tokenizer, _vocabulary(local, folders), note)


def _local(workload: Workload, folders: Sequence[Path]) -> LocalTokenizer | None:
    if workload.tokenizer is not None:
        try:
            return LocalTokenizer(Path(workload.tokenizer))
        except UnusableTokenizer as error:
            raise refused("tokenizer", str(error), code="bad-tokenizer", value=workload.tokenizer) from None
    for folder in folders:
        # The reference backend's engines keep theirs in a folder of its own.
        for place in (folder, folder / "tokenizer"):
            with suppress(UnusableTokenizer):
                return LocalTokenizer(place)
    return None


def _served(endpoint: Endpoint | None, timeout_s: float) -> ServedTokenizer | None:
    if endpoint is None:
        return None
    try:
        served = ServedTokenizer(endpoint, timeout_s)
        served.encode(_PROBES[:1])
    except RequestFailed:
        return None
    return served


def _agreeing(local: LocalTokenizer, served: ServedTokenizer) -> Tokenizer:
    """The local one, with or without the tokens around each text, if it cuts as the server does."""
    told = served.encode(_PROBES)
    if local.encode(_PROBES) == told:
        return local
    plain = LocalTokenizer(Path(local.name), special=False)
    return plain if plain.encode(_PROBES) == told else served


def _vocabulary(local: LocalTokenizer | None, folders: Sequence[Path]) -> Vocabulary | None:
    found = (
        of_config(config, str(folder))
        for folder in folders
        if (config := read_model_config(str(folder))) is not None
    )
    told = next((vocabulary for vocabulary in found if vocabulary is not None), None)
    if local is None:
        return told
    return local.vocabulary(None if told is None else told.size)
