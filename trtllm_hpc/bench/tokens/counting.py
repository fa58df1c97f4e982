"""Who counts the tokens, from the best source to the last resort.

Of an answer, in this order: the model (the ids that it answered with, or its
``sequence_length``); the responses of a stream, unless the tokenizer
finds several tokens in most of them; the tokenizer, run over the text; the
number asked for. Each record says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from trtllm_hpc.bench.load import Chunk, ParsedReply, Reply
from trtllm_hpc.bench.records import DRAIN, MEASURED, WARMUP, RequestRecord
from trtllm_hpc.bench.summary import Window
from trtllm_hpc.bench.tokens.retokenizing import Texts, in_one_piece, recounted, repeats_prompt
from trtllm_hpc.bench.tokens.sources import (
    BY_MODEL,
    BY_PREPROCESSING,
    BY_REQUEST,
    BY_RESPONSES,
    BY_TOKENIZER,
    BY_WORKLOAD,
)
from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.bench.workload.tokenizer import Tokenizer

__all__ = [
    "BY_MODEL",
    "BY_PREPROCESSING",
    "BY_REQUEST",
    "BY_RESPONSES",
    "BY_TOKENIZER",
    "BY_WORKLOAD",
    "to_records",
]


@dataclass(frozen=True)
class _Count:
    """The tokens of one answer, and who counted them."""

    tokens: int
    by: str
    chunks: tuple[int, ...] = ()
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
    """The records of one pass, in the order of the replies.

    What came of a stream that broke off is kept, without a total.

    Args:
        parsed: of each reply, see :func:`trtllm_hpc.bench.load.replies.parse`.
        requests: the workload, which the replies' ``index`` refers to.
        window: the measured part; what was due before it is warm-up, and after it drain.
        tokenizer: counts answers of which the model does not tell the length.
        models: that take turns, recorded as the instance of each request; none if there is only one.
    """
    asked = [requests[reply.index] for reply in replies]
    texts = recounted(parsed, asked, tokenizer)
    return [
        _record(reply, request, answer, _counted(request, answer, text), (level, repeat), window, models)
        for reply, request, answer, text in zip(replies, asked, parsed, texts, strict=True)
    ]


def _record(
    reply: Reply,
    request: Request,
    answer: ParsedReply,
    count: _Count,
    place: tuple[int, int],
    window: Window,
    models: Sequence[str],
) -> RequestRecord:
    level, repeat = place
    return RequestRecord(
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


def _phase(due_s: float, window: Window) -> str:
    if due_s < window.start_s:
        return WARMUP
    return MEASURED if due_s <= window.end_s else DRAIN


def _counted(request: Request, answer: ParsedReply, texts: Texts | None) -> _Count:
    if answer.streamed and not in_one_piece(request, answer):
        return _of_stream(request, answer.chunks, texts)
    count = _of_whole(request, answer, texts)
    if answer.streamed and answer.chunks:
        return replace(count, chunks=(count.tokens,), chunks_by=count.by)
    return count


def _of_whole(request: Request, answer: ParsedReply, texts: Texts | None) -> _Count:
    """An unstreamed answer's tokens."""
    chunks, told = answer.chunks, _told(request, answer)
    if told is not None:
        return _Count(told, BY_MODEL)
    if not chunks:
        return _Count(0, BY_RESPONSES)
    return _Count(request.max_tokens, BY_REQUEST) if texts is None else _Count(texts.total, texts.by)


def _told(request: Request, answer: ParsedReply) -> int | None:
    """Tokens of an unstreamed answer, without those of a prompt that it repeats."""
    ids = answer.token_ids
    if ids is not None:
        return len(ids) - (len(request.token_ids or ()) if repeats_prompt(request, answer) else 0)
    lengths = _lengths(answer.chunks)
    if not lengths or not repeats_prompt(request, answer):
        return sum(lengths) if lengths else None
    return None if request.input_tokens is None else sum(lengths) - request.input_tokens


def _of_stream(request: Request, chunks: Sequence[Chunk], texts: Texts | None) -> _Count:
    """A stream's tokens; a response that brings output brings at least one of them."""
    ids = [chunk.token_ids for chunk in chunks]
    if ids and all(known is not None for known in ids):
        lengths = tuple(len(known) for known in ids if known is not None)
        return _Count(sum(lengths), BY_MODEL, lengths, BY_MODEL)
    told = _lengths(chunks)
    if told is not None:
        return _Count(sum(told), BY_MODEL, told, BY_MODEL)
    if texts is not None:
        return _Count(texts.total, texts.by, texts.chunks, texts.by)
    return _Count(len(chunks), BY_RESPONSES, (1,) * len(chunks), BY_RESPONSES)


def _lengths(chunks: Sequence[Chunk]) -> tuple[int, ...] | None:
    """Tokens of each response as the model tells them; ``None`` if it does not.

    A length that grows with each response is that of the whole answer so far.
    """
    told = [chunk.sequence_length for chunk in chunks if chunk.sequence_length is not None]
    if len(told) < len(chunks):
        return None
    grows = len(told) > 1 and all(after > before for before, after in pairwise(told))
    if not grows:
        return tuple(told)
    return tuple(after - before for before, after in pairwise([0, *told]))
