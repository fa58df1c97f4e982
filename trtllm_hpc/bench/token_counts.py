"""The tokens of answers, by the best source there is, and the records made with them.

In this order: the model (the ids of its answer, or its ``sequence_length``);
the responses of a stream, unless the tokenizer finds that most have several
tokens; the tokenizer, run on the text; the requested number. Each record names
its source.

Counts by the tokenizer are close, not exact: a model may generate other tokens
for a text than the tokenizer, and a token that is part of a character arrives
as U+FFFD.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from trtllm_hpc.bench.load.messages import Chunk, ParsedReply, Reply
from trtllm_hpc.bench.records import DRAIN, MEASURED, WARMUP, RequestRecord
from trtllm_hpc.bench.results import Window
from trtllm_hpc.bench.workload.request import BY_MODEL, BY_REQUEST, BY_RESPONSES, Request, Tokenizer

_BATCH = 512
"""Texts in one call of the tokenizer."""
_SAMPLE = 512
"""Responses that decide whether they have several tokens, which depends on the server, not on the prompt."""
_REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class _Count:
    """The tokens of one answer, and who counted them."""

    tokens: int
    by: str
    chunks: tuple[int, ...] = ()
    """Tokens of each response of a stream."""
    chunks_by: str | None = None


def to_records(
    replies: Sequence[Reply],
    parsed: Sequence[ParsedReply],
    requests: Sequence[Request],
    *,
    level: int,
    repeat: int,
    window: Window,
    tokenizer: Tokenizer | None = None,
    models: Sequence[str] = (),
) -> list[RequestRecord]:
    """Return the records of one pass, in the order of the replies.

    The responses of a stream that broke off are kept, without a total.

    Args:
        parsed: of each reply, see :func:`trtllm_hpc.bench.load.parse_reply`.
        requests: the workload, which the replies' ``index`` refers to.
        window: the measured part; what was due before it is warm-up, and after it drain.
        tokenizer: counts answers whose length the model does not report.
        models: that take turns, recorded as the instance of each request; none if there is only one.
    """
    sent = [requests[reply.index] for reply in replies]
    retokenized = _retokenize(parsed, sent, tokenizer)
    counts = map(_count, sent, parsed, retokenized)
    return [
        RequestRecord(
            index=reply.index,
            level=level,
            repeat=repeat,
            phase=_phase(reply.due_s, window),
            scheduled_s=reply.due_s,
            sent_s=reply.sent_s,
            ended_s=reply.ended_s,
            status=reply.status,
            error=reply.error,
            requested_tokens=request.max_tokens,
            chunks_s=tuple(chunk.time_s for chunk in answer.chunks) if answer.streamed else (),
            chunk_tokens=count.chunks,
            chunks_by=count.chunks_by,
            input_tokens=request.input_tokens,
            input_by=request.input_by,
            output_tokens=count.tokens if reply.ok else None,
            output_by=count.by if reply.ok else None,
            instance=models[reply.index % len(models)] if models else None,
        )
        for reply, request, answer, count in zip(replies, sent, parsed, counts, strict=True)
    ]


def _phase(due_s: float, window: Window) -> str:
    if due_s < window.start_s:
        return WARMUP
    return MEASURED if due_s <= window.end_s else DRAIN


def _count(request: Request, answer: ParsedReply, retokenized: _Count | None) -> _Count:
    if answer.streamed and not _in_one_piece(request, answer):
        return _count_stream(request, answer.chunks, retokenized)
    count = _count_whole(request, answer, retokenized)
    if answer.streamed and answer.chunks:
        return replace(count, chunks=(count.tokens,), chunks_by=count.by)
    return count


def _count_whole(request: Request, answer: ParsedReply, retokenized: _Count | None) -> _Count:
    """The tokens of an unstreamed answer."""
    reported = _reported(request, answer)
    if reported is not None:
        return _Count(reported, BY_MODEL)
    if not answer.chunks:
        return _Count(0, BY_RESPONSES)
    return retokenized or _Count(request.max_tokens, BY_REQUEST)


def _reported(request: Request, answer: ParsedReply) -> int | None:
    """The length of an unstreamed answer as the model reports it, without a repeated prompt."""
    ids = answer.token_ids
    if ids is not None:
        return len(ids) - (len(request.token_ids or ()) if _repeats_prompt(request, answer) else 0)
    lengths = _reported_lengths(answer.chunks)
    if not lengths or not _repeats_prompt(request, answer):
        return sum(lengths) if lengths else None
    return None if request.input_tokens is None else sum(lengths) - request.input_tokens


def _count_stream(request: Request, chunks: Sequence[Chunk], retokenized: _Count | None) -> _Count:
    """The tokens of a stream; a response with output has at least one."""
    ids = [chunk.token_ids for chunk in chunks]
    if ids and all(known is not None for known in ids):
        lengths = tuple(len(known) for known in ids if known is not None)
        return _Count(sum(lengths), BY_MODEL, lengths, BY_MODEL)
    reported = _reported_lengths(chunks)
    if reported is not None:
        return _Count(sum(reported), BY_MODEL, reported, BY_MODEL)
    return retokenized or _Count(len(chunks), BY_RESPONSES, (1,) * len(chunks), BY_RESPONSES)


def _reported_lengths(chunks: Sequence[Chunk]) -> tuple[int, ...] | None:
    """The tokens of each response as the model reports them; ``None`` if it does not.

    A length that grows with each response is that of the whole answer so far.
    """
    lengths = [chunk.sequence_length for chunk in chunks if chunk.sequence_length is not None]
    if len(lengths) < len(chunks):
        return None
    grows = len(lengths) > 1 and all(after > before for before, after in pairwise(lengths))
    if not grows:
        return tuple(lengths)
    return tuple(after - before for before, after in pairwise([0, *lengths]))


def _repeats_prompt(request: Request, answer: ParsedReply) -> bool:
    """Whether the answer begins with the prompt, as upstream's models do unless configured otherwise."""
    ids = answer.token_ids
    if ids is not None and request.token_ids:
        return ids[: len(request.token_ids)] == request.token_ids
    return bool(request.prompt) and (answer.text or "").startswith(request.prompt or "")


def _in_one_piece(request: Request, answer: ParsedReply) -> bool:
    """Whether a stream had the whole answer in one response, as if the model did not stream, or none."""
    return not answer.chunks or (len(answer.chunks) == 1 and _repeats_prompt(request, answer))


def _retokenize(
    parsed: Sequence[ParsedReply], requests: Sequence[Request], tokenizer: Tokenizer | None
) -> list[_Count | None]:
    """The tokens of each answer's text; ``None`` without a text, or where they are known otherwise.

    They are known for streams whose responses have one token each.
    """
    counts: list[_Count | None] = [None] * len(parsed)
    if tokenizer is None:
        return counts
    unknown = [at for at, answer in enumerate(parsed) if _length_unknown(answer)]
    whole = [at for at in unknown if not parsed[at].streamed or _in_one_piece(requests[at], parsed[at])]
    streams = sorted(set(unknown) - set(whole))
    if not _several_tokens_a_response([parsed[at] for at in streams], tokenizer):
        streams = []
    for at in streams:
        chunks = tuple(_text_lengths(_new_texts(parsed[at]), tokenizer))
        counts[at] = _Count(sum(chunks), tokenizer.counted_by, chunks, tokenizer.counted_by)
    texts = [("".join(_new_texts(parsed[at])), requests[at]) for at in whole]
    for at, tokens in zip(whole, _retokenize_whole(texts, tokenizer), strict=True):
        counts[at] = _Count(tokens, tokenizer.counted_by)
    return counts


def _length_unknown(answer: ParsedReply) -> bool:
    return answer.text is not None and any(chunk.sequence_length is None for chunk in answer.chunks)


def _retokenize_whole(texts: Sequence[tuple[str, Request]], tokenizer: Tokenizer) -> Iterator[int]:
    """Yield the tokens of unstreamed answers without a repeated prompt, at most the requested number."""
    if not texts:
        return
    special = len(tokenizer.encode([""])[0])
    for begin in range(0, len(texts), _BATCH):
        batch = texts[begin : begin + _BATCH]
        encoded = tokenizer.encode([text for text, _ in batch])
        for (text, request), ids in zip(batch, encoded, strict=True):
            repeated = request.input_tokens if request.prompt and text.startswith(request.prompt) else None
            tokens = len(ids) - (special if repeated is None else repeated)
            yield min(max(tokens, 0), request.max_tokens)


def _several_tokens_a_response(streams: Sequence[ParsedReply], tokenizer: Tokenizer) -> bool:
    """Whether the texts of most responses have more than one token each."""
    texts = [text for answer in streams for text in _new_texts(answer) if _REPLACEMENT not in text]
    if not texts:
        return False
    lengths = _text_lengths(texts[:: max(1, len(texts) // _SAMPLE)], tokenizer)
    return sum(length > 1 for length in lengths) * 2 > len(lengths)


def _text_lengths(texts: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """The tokens of each text; at least one, since a response without text has a special token."""
    special, *encoded = map(len, tokenizer.encode(["", *texts]))
    return [
        1 if _REPLACEMENT in text else max(1, length - special)
        for text, length in zip(texts, encoded, strict=True)
    ]


def _new_texts(answer: ParsedReply) -> list[str]:
    """The text that each response adds, also where each has all so far (BLS with ``accumulate_tokens``)."""
    texts = [chunk.text or "" for chunk in answer.chunks]
    accumulates = (
        len(texts) > 1
        and len(texts[-1]) > len(texts[0])
        and all(after.startswith(before) for before, after in pairwise(texts))
    )
    if not accumulates:
        return texts
    return [after[len(before) :] for before, after in pairwise(["", *texts])]
