"""Tokens of answers counted by running the tokenizer over their texts.

That is close, not exact: a model may spell a text otherwise than the tokenizer
would, and a token that is a part of a letter comes as U+FFFD.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trtllm_hpc.bench.load import ParsedReply
from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.bench.workload.tokenizer import Tokenizer

_AT_ONCE = 512
_SAMPLE = 512
"""Responses that tell whether they hold several tokens: that is the server's way, not the prompt's."""
_PART_OF_A_LETTER = "\ufffd"


@dataclass(frozen=True)
class Texts:
    """The tokens of one answer's text."""

    total: int
    by: str
    chunks: tuple[int, ...] = ()
    """Those of each response, for a stream."""


def recounted(
    parsed: Sequence[ParsedReply], requests: Sequence[Request], tokenizer: Tokenizer | None
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
    whole = [at for at in unknown if not parsed[at].streamed or in_one_piece(requests[at], parsed[at])]
    streams = sorted(set(unknown) - set(whole))
    if not _several_a_response([parsed[place] for place in streams], tokenizer):
        streams = []
    for place, texts in zip(streams, _of_streams([parsed[at] for at in streams], tokenizer), strict=True):
        found[place] = texts
    jobs = [("".join(new_texts(parsed[place])), requests[place]) for place in whole]
    for place, texts in zip(whole, _of_whole(jobs, tokenizer), strict=True):
        found[place] = texts
    return found


def repeats_prompt(request: Request, answer: ParsedReply) -> bool:
    """Whether the answer begins with the prompt, as upstream's models do unless told to exclude it."""
    ids = answer.token_ids
    if ids is not None and request.token_ids:
        return ids[: len(request.token_ids)] == request.token_ids
    return bool(request.prompt) and (answer.text or "").startswith(request.prompt or "")


def in_one_piece(request: Request, answer: ParsedReply) -> bool:
    """Whether a stream brought the whole answer at once, as of a model that does not stream, or nothing."""
    return not answer.chunks or (len(answer.chunks) == 1 and repeats_prompt(request, answer))


def _length_unknown(answer: ParsedReply) -> bool:
    return answer.text is not None and any(chunk.sequence_length is None for chunk in answer.chunks)


def _of_whole(jobs: Sequence[tuple[str, Request]], tokenizer: Tokenizer) -> Iterator[Texts]:
    """The tokens of unstreamed answers without a prompt that they repeat, no more than were asked for."""
    if not jobs:
        return
    around = len(tokenizer.encode([""])[0])
    for begin in range(0, len(jobs), _AT_ONCE):
        batch = jobs[begin : begin + _AT_ONCE]
        encoded = tokenizer.encode([text for text, _ in batch])
        for (text, request), ids in zip(batch, encoded, strict=True):
            repeated = request.input_tokens if request.prompt and text.startswith(request.prompt) else None
            tokens = len(ids) - (around if repeated is None else repeated)
            yield Texts(min(max(tokens, 0), request.max_tokens), tokenizer.counted_by)


def _of_streams(streams: Sequence[ParsedReply], tokenizer: Tokenizer) -> Iterator[Texts]:
    for answer in streams:
        chunks = tuple(_lengths(new_texts(answer), tokenizer))
        yield Texts(sum(chunks), tokenizer.counted_by, chunks)


def _several_a_response(streams: Sequence[ParsedReply], tokenizer: Tokenizer) -> bool:
    """Whether the text of most responses, taken alone, is more than one token."""
    texts = [text for answer in streams for text in new_texts(answer) if _PART_OF_A_LETTER not in text]
    if not texts:
        return False
    lengths = _lengths(texts[:: max(1, len(texts) // _SAMPLE)], tokenizer)
    return sum(length > 1 for length in lengths) * 2 > len(lengths)


def _lengths(texts: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """The tokens of each text; at least one, for a response without text brings a special token."""
    around, *encoded = map(len, tokenizer.encode(["", *texts]))
    return [
        1 if _PART_OF_A_LETTER in text else max(1, length - around)
        for text, length in zip(texts, encoded, strict=True)
    ]


def new_texts(answer: ParsedReply) -> list[str]:
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
