"""Tokens of answers counted by running the tokenizer over their texts.

That is close, not exact: a model may spell a text otherwise than the tokenizer
would, and a token that is a part of a letter comes as U+FFFD.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trtllm_hpc.bench.load.replies import Parsed
from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.bench.workload.tokenizer import Tokenizer

_AT_ONCE = 512
_SAMPLE = 32
"""Streams that tell whether responses hold several tokens: that is the server's way, not the prompt's."""
_PART_OF_A_LETTER = "\ufffd"


@dataclass(frozen=True)
class Texts:
    """The tokens of one answer's text."""

    total: int
    by: str
    chunks: tuple[int, ...] = ()
    """Those of each response, for a stream."""


def recounted(
    parsed: Sequence[Parsed], requests: Sequence[Request], tokenizer: Tokenizer | None
) -> list[Texts | None]:
    """The tokens of each answer's text; ``None`` where there is no need of it, or no text.

    There is none for streams whose responses hold a token each.

    Args:
        requests: what was asked, one for each answer.
    """
    found: list[Texts | None] = [None] * len(parsed)
    if tokenizer is None:
        return found
    unknown = [place for place, answer in enumerate(parsed) if _length_unknown(answer)]
    streams = [place for place in unknown if parsed[place].streamed]
    if not _several_a_response([parsed[place] for place in streams], tokenizer):
        streams = []
    for place, texts in zip(streams, _of_streams([parsed[at] for at in streams], tokenizer), strict=True):
        found[place] = texts
    whole = [place for place in unknown if not parsed[place].streamed]
    jobs = [("".join(new_texts(parsed[place])), requests[place]) for place in whole]
    for place, texts in zip(whole, _of_whole(jobs, tokenizer), strict=True):
        found[place] = texts
    return found


def _length_unknown(answer: Parsed) -> bool:
    return answer.text is not None and any(chunk.sequence_length is None for chunk in answer.chunks)


def _of_whole(jobs: Sequence[tuple[str, Request]], tokenizer: Tokenizer) -> Iterator[Texts]:
    """The tokens of unstreamed answers without a prompt that they repeat, no more than were asked for."""
    around = len(tokenizer.encode([""])[0])
    for begin in range(0, len(jobs), _AT_ONCE):
        batch = jobs[begin : begin + _AT_ONCE]
        encoded = tokenizer.encode([text for text, _ in batch])
        for (text, request), ids in zip(batch, encoded, strict=True):
            repeated = request.input_tokens if request.prompt and text.startswith(request.prompt) else None
            tokens = len(ids) - (around if repeated is None else repeated)
            yield Texts(min(max(tokens, 0), request.max_tokens), tokenizer.counted_by)


def _of_streams(streams: Sequence[Parsed], tokenizer: Tokenizer) -> Iterator[Texts]:
    for answer in streams:
        chunks = tuple(_lengths(new_texts(answer), tokenizer))
        yield Texts(sum(chunks), tokenizer.counted_by, chunks)


def _several_a_response(streams: Sequence[Parsed], tokenizer: Tokenizer) -> bool:
    """Whether the text of most responses, taken alone, is more than one token."""
    sample = streams[:: max(1, len(streams) // _SAMPLE)]
    texts = [text for answer in sample for text in new_texts(answer) if _PART_OF_A_LETTER not in text]
    lengths = _lengths(texts, tokenizer)
    return sum(length > 1 for length in lengths) * 2 > len(lengths)


def _lengths(texts: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """The tokens of each text; at least one, for a response without text brings a special token."""
    around, *encoded = map(len, tokenizer.encode(["", *texts]))
    return [
        1 if _PART_OF_A_LETTER in text else max(1, length - around)
        for text, length in zip(texts, encoded, strict=True)
    ]


def new_texts(answer: Parsed) -> list[str]:
    """The text that each response adds, also where each brings all so far (BLS, ``accumulate_tokens``)."""
    texts = [chunk.text or "" for chunk in answer.chunks]
    accumulates = (
        len(texts) > 1
        and len(texts[-1]) > len(texts[0])
        and all(after.startswith(before) for before, after in pairwise(texts))
    )
    if not accumulates:
        return texts
    return [after[len(before) :] for before, after in pairwise(["", *texts])]
