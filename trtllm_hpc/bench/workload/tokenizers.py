"""Tokenizers that count on the client's side: the model's own, or the server's over the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trtllm_hpc.bench.workload.request import (
    BY_PREPROCESSING,
    BY_TOKENIZER,
    Tokenizer,
    Vocabulary,
    settings_error,
)
from trtllm_hpc.client.single_calls import call_json, grpc_calls
from trtllm_hpc.client.tokenizer_file import read_tokenizer
from trtllm_hpc.config.benchmark import Workload
from trtllm_hpc.errors import NotReady, RequestFailed, ServerUnreachable
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.tensorrt_llm.job_facts import read_model_config
from trtllm_hpc.wire.response import WrongResponse
from trtllm_hpc.wire.triton_request import infer_request
from trtllm_hpc.wire.triton_response import infer_outputs

_SERVED_MODEL = "preprocessing"
_PROBES = ("Hello world", " two  spaces\n", "naïve café, 12345!", "The quick brown fox")
"""Texts that different tokenizers are unlikely to encode alike."""


@dataclass(frozen=True)
class Tokenization:
    """The tokenizer and vocabulary of the served model, as far as they are known."""

    tokenizer: Tokenizer | None = None
    vocabulary: Vocabulary | None = None
    note: str | None = None
    """A sentence for readers of the results."""


class LocalTokenizer:
    """The library ``tokenizers`` with a folder's ``tokenizer.json``; raises RequestFailed.

    With ``special`` it adds the tokens that begin and end a text, as upstream's ``preprocessing`` does unless
    ``add_special_tokens`` is off.
    """

    counted_by = BY_TOKENIZER

    def __init__(self, folder: Path, *, special: bool = True) -> None:
        self.name = str(folder)
        self._special = special
        self._tokenizer = read_tokenizer(folder)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text."""
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=self._special)
        return [encoding.ids for encoding in encodings]

    @cached_property
    def token_texts(self) -> frozenset[str]:
        """The text of each token by itself."""
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        return frozenset(self._tokenizer.decode_batch([[token] for token in ids]))

    def vocabulary(self, size: int | None = None) -> Vocabulary:
        """Return its tokens without the special ones, and without ids from the model's own ``size`` on."""
        special = {i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        ids = sorted(set(self._tokenizer.get_vocab(with_added_tokens=True).values()) - special)
        known = [token for token in ids if size is None or token < size]
        return Vocabulary(known, self.name, size or ids[-1] + 1)


class ServedTokenizer:
    """The server's ``preprocessing``, for clients that cannot read the model; raises RequestFailed."""

    counted_by = BY_PREPROCESSING
    token_texts = None

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self.name = f"{_SERVED_MODEL} at {endpoint.grpc}"
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        config = call_json(endpoint, f"v2/models/{_SERVED_MODEL}/config", timeout_s)
        self._shape = (1, 1) if config.get("max_batch_size") else (1,)
        self._required = {tensor["name"] for tensor in config["input"] if not tensor.get("optional")}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text; one call each, since not every ``preprocessing`` takes batches.

        Raises NotReady if the server is not there, or not any more; RequestFailed with the server's error
        message.
        """
        try:
            with grpc_calls(self._endpoint, self._timeout_s) as call:
                return [self._infer(call, text) for text in texts]
        except ServerUnreachable as error:
            raise NotReady(error.message) from error

    def follow(self, endpoint: Endpoint) -> None:
        """Call the server there, from now on."""
        self._endpoint = endpoint

    def _infer(self, call: Callable[[str, Any], Any], text: str) -> list[int]:
        answer = call("ModelInfer", infer_request(_SERVED_MODEL, self._arrays(text)))
        try:
            outputs = infer_outputs(answer)
            ids, lengths = outputs["INPUT_ID"], outputs["REQUEST_INPUT_LEN"]
        except (WrongResponse, KeyError) as error:
            raise RequestFailed(f"Model {_SERVED_MODEL!r} did not return token ids: {error}.") from None
        tokens: list[int] = ids.reshape(-1)[: int(lengths.reshape(-1)[0])].tolist()
        return tokens

    def _arrays(self, text: str) -> dict[str, Any]:
        """The inputs; stop and bad words, empty, only where the model requires them."""
        query = text.encode("utf-8", errors="replace")
        arrays = {
            "QUERY": np.array([query], dtype=np.object_).reshape(self._shape),
            "REQUEST_OUTPUT_LEN": np.ones(self._shape, dtype=np.int32),
        }
        for name in self._required - set(arrays):
            arrays[name] = np.array([b""], dtype=np.object_).reshape(self._shape)
        return arrays


def find_tokenizer(
    workload: Workload, folders: Sequence[Path] = (), endpoint: Endpoint | None = None, timeout_s: float = 30
) -> Tokenization:
    """Find the tokenizer that counts, and the ordinary token ids of the model.

    A tokenizer that this machine can read is fast, but only right if it agrees with the server's: where the
    server has ``preprocessing``, the two are compared, and if they differ the server counts. ``folders`` are
    those of the model and of its engine; the first tokenizer and the first ``config.json`` are taken. Raises
    ConfigError if the settings name a folder without a readable tokenizer.
    """
    local = _find_local(workload, folders)
    served = _find_served(endpoint, timeout_s)
    tokenizer: Tokenizer | None = local or served
    note = None
    if local is not None and served is not None:
        tokenizer = _agreeing(local, served)
        if tokenizer is served:
            note = (
                f"The tokenizer in {local.name} differs from the server's, so the server counts the tokens."
            )
    return Tokenization(tokenizer, _find_vocabulary(local, folders), note)


def _find_local(workload: Workload, folders: Sequence[Path]) -> LocalTokenizer | None:
    if workload.tokenizer is not None:
        try:
            return LocalTokenizer(Path(workload.tokenizer))
        except RequestFailed as error:
            raise settings_error(
                "tokenizer", error.message, code="bad-tokenizer", value=workload.tokenizer
            ) from None
    for folder in folders:
        # The reference backend's engines have it in a subfolder.
        for candidate in (folder, folder / "tokenizer"):
            with suppress(RequestFailed):
                return LocalTokenizer(candidate)
    return None


def _find_served(endpoint: Endpoint | None, timeout_s: float) -> ServedTokenizer | None:
    if endpoint is None:
        return None
    try:
        served = ServedTokenizer(endpoint, timeout_s)
        served.encode(_PROBES[:1])
    except RequestFailed:
        return None
    return served


def _agreeing(local: LocalTokenizer, served: ServedTokenizer) -> Tokenizer:
    """The local one, with or without special tokens, if it encodes as the server does; else the server's."""
    expected = served.encode(_PROBES)
    if local.encode(_PROBES) == expected:
        return local
    plain = LocalTokenizer(Path(local.name), special=False)
    return plain if plain.encode(_PROBES) == expected else served


def _find_vocabulary(local: LocalTokenizer | None, folders: Sequence[Path]) -> Vocabulary | None:
    configs = ((folder, read_model_config(str(folder))) for folder in folders)
    found = (config_vocabulary(config, str(folder)) for folder, config in configs if config is not None)
    of_config = next((vocabulary for vocabulary in found if vocabulary is not None), None)
    if local is None:
        return of_config
    return local.vocabulary(None if of_config is None else of_config.size)


def config_vocabulary(config: Mapping[str, Any], name: str) -> Vocabulary | None:
    """Return the vocabulary of a model's or an engine's ``config.json``; ``None`` if it has no size.

    The size may be padded beyond the tokenizer's: prefer :meth:`LocalTokenizer.vocabulary`.
    """
    model = config.get("pretrained_config", config)
    size = model.get("vocab_size") if isinstance(model, Mapping) else None
    if not isinstance(size, int) or size < 1:
        return None
    special: set[int] = set()
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = model.get(key)
        special.update(value if isinstance(value, list) else [value])
    return Vocabulary([token for token in range(size) if token not in special], name, size)
