"""Generate prompts of given or random lengths, as token IDs or as texts of common words.

The same seed and settings give the same requests at the same times, with the same version of this toolkit
and of NumPy, whose generators may change with a release (NEP 19).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtllm_hpc.bench.workload.request import (
    BY_TOKENIZER,
    BY_WORKLOAD,
    TextEncoder,
    Vocabulary,
    WorkloadRequest,
    WorkloadSpec,
    settings_error,
)
from trtllm_hpc.client.tokenizer_file import read_tokenizer
from trtllm_hpc.config.benchmark import Workload
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.tensorrt_llm.job_facts import read_model_config

TOKENIZER_HINT = (
    "--tokenizer FOLDER (with tokenizer.json), or companion.benchmark.workload.tokenizer in the job file"
)

_BATCH = 256
"""Number of texts per call of the tokenizer."""
_MIN_WORDS = 8
"""Fewest one-token words of a tokenizer from which different prompts can be made."""
_MAX_ROUNDS = 32
"""Most corrections of texts whose token counts are not the sum of their words'."""

_WORDS = """
    the of and to in is that for it as was with be by on not he his but at are this have from or had an they
    which one you were her all she there would their we him been has when who will more no if out so said
    what up its about into than them can only other new some could time these two may then do first any my
    now such like our over man me even most made after also did many before must through back years where
    much your way well down should because each just those people how too little state good very make world
    still own see men work long get here between both life being under never day same another know while
    last might us great old year off come since against go came right used take three house use again place
    found end part water side until always away something fact less though night head yet hand think home
    give room light face put small left word line river train north south east west early late morning open
    book table letter road field stone tree bird green white black red blue high low deep cold warm summer
    winter spring answer question number city street music paper school friend mother father child king ship
    sea land sun moon star wind rain fire a i e o s t n r d l c m p g b f h k v w y u x j z q
"""
COMMON_WORDS = tuple(_WORDS.split())
"""Words for which most tokenizers have a token each. Their order must not change, because workloads are
reproducible."""


Codes = NDArray[np.int32]
"""A random number for each token of a prompt, which selects a word or token ID; equal codes, equal tokens."""


Drawn = tuple[WorkloadRequest, Codes]
"""A request without a prompt, and a code for each token of the prompt that is generated later."""


def random_source(seed: int, name: str) -> np.random.Generator:
    """Return the random generator ``name``, which is independent of what other generators draw."""
    return np.random.default_rng([seed, *name.encode()])


def draw_codes(source: np.random.Generator, count: int) -> Codes:
    """Return codes for ``count`` tokens, from a range so large that a modulo has no noticeable bias."""
    return source.integers(np.iinfo(np.int32).max, size=count, dtype=np.int32)


def random_order(count: int, seed: int) -> Iterator[int]:
    """Yield all numbers below ``count`` in random order, then again in another, without end."""
    source = random_source(seed, "order")
    while True:
        yield from source.permutation(count).tolist()


def draw_lengths(spec: WorkloadSpec, prefix_tokens: int = 0) -> tuple[list[tuple[int, int]], list[str]]:
    """Draw the length of each prompt and answer, and shorten prompts to the limit minus the prefix.

    Lengths are from two normal distributions (TensorRT-LLM's ``token-norm-dist``), rounded, at least 1. A
    note has the number of shortened prompts. Raises ConfigError if the prefix leaves no room.
    """
    workload, limit = spec.settings.workload, spec.limit
    means = workload.input_tokens, workload.output_tokens or spec.settings.max_tokens
    stdevs = workload.input_tokens_stdev, workload.output_tokens_stdev
    drawn = random_source(spec.settings.seed, "lengths").standard_normal((spec.count, 2)) * stdevs + means
    pairs: list[tuple[int, int]] = [(int(a), int(b)) for a, b in np.maximum(np.rint(drawn), 1)]
    if limit is None:
        return pairs, []
    room = limit - prefix_tokens
    if room < 1:
        message = f"a prefix of {prefix_tokens} tokens leaves no room in prompts of at most {limit}"
        raise settings_error("prefix_tokens", message, value=prefix_tokens, hint=f"set it below {limit}")
    cut = sum(length > room for length, _ in pairs)
    notes = [f"Prompts shortened to {room} tokens: {cut:,}."] if cut else []
    return [(min(length, room), output) for length, output in pairs], notes


def generated_requests(spec: WorkloadSpec, drawn: Iterable[Drawn]) -> tuple[list[WorkloadRequest], list[str]]:
    """Return the requests with their prompts, in their order, and notes for readers of the results.

    Prompts are token IDs for a model that takes ids, else texts. Raises ConfigError if there is neither
    tokenizer nor vocabulary for them.
    """
    if spec.takes_token_ids:
        if spec.vocabulary is None:
            message = "prompts of token IDs need the model's vocabulary, but no tokenizer was found"
            raise settings_error("tokenizer", message, code="no-vocabulary", hint=TOKENIZER_HINT)
        # A list, so that all requests share its int objects, because there may be tens of millions of tokens.
        ids = list(spec.vocabulary.ids)
        return [
            replace(
                request,
                token_ids=tuple(map(ids.__getitem__, (codes % len(ids)).tolist())),
                input_tokens=len(codes),
                input_by=BY_WORKLOAD,
            )
            for request, codes in drawn
        ], []
    if spec.tokenizer is None:
        message = "prompts of a given length need the model's tokenizer, but none was found"
        raise settings_error("tokenizer", message, code="no-tokenizer", hint=TOKENIZER_HINT)
    writer, requests, inexact, remaining = TextWriter(spec.tokenizer), list[WorkloadRequest](), 0, iter(drawn)
    while batch := list(islice(remaining, _BATCH)):
        texts = writer.write([codes for _, codes in batch])
        for (request, codes), (text, tokens) in zip(batch, texts, strict=True):
            inexact += tokens != len(codes)
            requests.append(replace(request, prompt=text, input_tokens=tokens, input_by=BY_TOKENIZER))
    if not inexact:
        return requests, []
    note = (
        f"{inexact:,} prompts differ from the drawn length, which the tokenizer cannot produce. The records "
        "have the real lengths."
    )
    return requests, [note]


class TextWriter:
    """Writes texts of one-token words, and counts their tokens with the tokenizer.

    Raises ConfigError if the tokenizer has too few words of one token.
    """

    def __init__(self, tokenizer: TextEncoder) -> None:
        self._tokenizer = tokenizer
        alone = self._lengths(COMMON_WORDS)
        self._special = min(alone) - 1
        """Number of special tokens that the tokenizer adds to each text."""
        self._first_words = _of_length(min(alone), alone)
        for self._separator in (" ", ""):  # "" for tokenizers of characters, in which a space is a token
            texts = [f"{self._first_words[0]}{self._separator}{word}" for word in COMMON_WORDS]
            self._words = _of_length(min(alone) + 1, self._lengths(texts))
            if len(self._words) >= _MIN_WORDS:
                return
        message = f"the tokenizer ({tokenizer.name}) encodes too few common words as one token"
        hint = "use workload.kind dataset or prompts"
        raise settings_error("tokenizer", message, code="odd-tokenizer", hint=hint)

    def _lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self._tokenizer.encode(texts)]

    def write(self, codes: Sequence[Codes]) -> list[tuple[str, int]]:
        """Return a text and its number of tokens for each row of codes, one token per code."""
        rows = []
        for of_text in codes:
            # Special tokens take the place of the first codes.
            places = (of_text[self._special + 1 :] % len(self._words)).tolist()
            begin = self._first_words[int(of_text[0]) % len(self._first_words)]
            rows.append([begin, *map(self._words.__getitem__, places)])
        lengths = self._lengths([self._separator.join(row) for row in rows])
        for attempt in range(_MAX_ROUNDS):
            # A text of one word cannot be shortened.
            wrong = [
                place
                for place, length in enumerate(lengths)
                if length != len(codes[place]) and (length < len(codes[place]) or len(rows[place]) > 1)
            ]
            if not wrong:
                break
            for place in wrong:
                row, missing = rows[place], len(codes[place]) - lengths[place]
                # Each attempt appends other words, to escape from cycles.
                first = len(row) + attempt * attempt
                more = [self._words[at % len(self._words)] for at in range(first, first + missing)]
                rows[place] = [*row, *more] if missing > 0 else row[: max(1, len(row) + missing)]
            found = self._lengths([self._separator.join(rows[place]) for place in wrong])
            for place, length in zip(wrong, found, strict=True):
                lengths[place] = length
        return [(self._separator.join(row), length) for row, length in zip(rows, lengths, strict=True)]


def _of_length(length: int, lengths: Sequence[int]) -> list[str]:
    """Return the common words whose text has ``length`` tokens."""
    return [word for word, tokens in zip(COMMON_WORDS, lengths, strict=True) if tokens == length]


# The model's tokenizer on the client, and its ordinary token IDs ---------------------------------------


class LocalTokenizer:
    """The library ``tokenizers`` with a folder's ``tokenizer.json``. Raises RequestFailed.

    ``special`` adds the tokens that begin and end a text, as TensorRT-LLM's ``preprocessing`` does unless
    ``add_special_tokens`` is off.
    """

    def __init__(self, folder: Path, *, special: bool = True) -> None:
        self.name = str(folder)
        self._special = special
        self._tokenizer = read_tokenizer(folder)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token IDs of each text."""
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=self._special)
        return [encoding.ids for encoding in encodings]

    def vocabulary(self, size: int | None = None) -> Vocabulary:
        """Return the tokenizer's ordinary tokens below the model's ``size``."""
        special = {i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        ids = sorted(set(self._tokenizer.get_vocab(with_added_tokens=True).values()) - special)
        return Vocabulary([token for token in ids if size is None or token < size], size or ids[-1] + 1)


def find_tokenizer(
    workload: Workload, folders: Sequence[Path] = (), *, special: bool = True
) -> tuple[TextEncoder | None, Vocabulary | None]:
    """Find the tokenizer that counts tokens, and the ordinary token IDs of the model.

    The first tokenizer and the first ``config.json`` in ``folders`` (engine, model) are used. Without a
    tokenizer, all IDs that ``config.json`` allows are ordinary. Raises ConfigError if the settings name a
    folder without a readable tokenizer.
    """
    sizes = []
    for folder in folders:
        config = read_model_config(str(folder)) or {}
        model = config.get("pretrained_config", config)
        size = model.get("vocab_size") if isinstance(model, dict) else None
        sizes += [size] if isinstance(size, int) and size > 0 else []
    size = next(iter(sizes), None)
    if workload.tokenizer is not None:
        try:
            local = LocalTokenizer(Path(workload.tokenizer), special=special)
        except RequestFailed as error:
            value = workload.tokenizer
            raise settings_error("tokenizer", error.message, code="bad-tokenizer", value=value) from None
        return local, local.vocabulary(size)
    for folder in folders:
        # Engines of the reference backend have the tokenizer in a subfolder.
        for candidate in (folder, folder / "tokenizer"):
            with suppress(RequestFailed):
                local = LocalTokenizer(candidate, special=special)
                return local, local.vocabulary(size)
    return None, None if size is None else Vocabulary(range(size), size)
