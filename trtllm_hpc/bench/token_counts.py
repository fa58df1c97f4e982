"""The tokens of answers, by the best source there is, and the records made with them.

In this order: the server (OpenAI's ``usage``); the model (the ids of its answer, or its ``sequence_length``);
the responses of a stream, unless the tokenizer finds some with several tokens; the tokenizer, run on the
text; the requested number. Each record names its source.

A server that is behind may send all tokens that are ready in one response, so each response is counted by
itself. Counts by the tokenizer are close, not exact: a model may generate other tokens for a text than the
tokenizer. A token that is part of a letter arrives as U+FFFD, or is held back until the letter is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from trtllm_hpc.bench.load.messages import Chunk, ParsedReply, Reply
from trtllm_hpc.bench.records import DRAIN, MEASURED, WARMUP, RequestRecord
from trtllm_hpc.bench.results import Window
from trtllm_hpc.bench.workload.request import BY_MODEL, BY_REQUEST, BY_RESPONSES, BY_USAGE, Request, Tokenizer

_BATCH = 512
"""Texts in one call of the tokenizer."""
_SAMPLE = 512
"""Responses whose texts decide whether most have several tokens."""
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
        parsed: of each reply, see :func:`trtllm_hpc.bench.load.messages.parse_reply`.
        requests: the workload, which the replies' ``index`` refers to.
        window: the measured part; what was due before it is warm-up, and after it drain.
        tokenizer: counts answers whose length the model does not report.
        models: that take turns, recorded as the instance of each request; none if there is only one.
    """
    sent = [requests[reply.index] for reply in replies]
    by_server = any(answer.usage is not None and answer.usage.reasoning_tokens for answer in parsed)
    has_reasoning = by_server or any(chunk.thought for answer in parsed for chunk in answer.chunks)
    counts = map(_count, sent, parsed, _reported_lengths(parsed), _retokenize(parsed, sent, tokenizer))
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
            **_input_tokens(request, answer),
            output_tokens=count.tokens if reply.ok else None,
            output_by=count.by if reply.ok else None,
            instance=models[reply.index % len(models)] if models else None,
            lora_task_id=request.lora_task_id,
            session=reply.session,
            turn=request.turn,
            cached_tokens=None if answer.usage is None else answer.usage.cached_tokens,
            **(_reasoning(answer, count) if reply.ok and has_reasoning else {}),
            resent=reply.resent,
        )
        for reply, request, answer, count in zip(replies, sent, parsed, counts, strict=True)
    ]


def _input_tokens(request: Request, answer: ParsedReply) -> dict[str, Any]:
    """The server counts the tokens of a chat's template, too, which the prompt does not have."""
    if answer.usage is not None and answer.usage.input_tokens is not None:
        return {"input_tokens": answer.usage.input_tokens, "input_by": BY_USAGE}
    return {"input_tokens": request.input_tokens, "input_by": request.input_by}


def _reasoning(answer: ParsedReply, count: _Count) -> dict[str, Any]:
    tokens = None if answer.usage is None else answer.usage.reasoning_tokens
    answers = [len(chunk.text or "") > chunk.thought for chunk in answer.chunks]
    if tokens is None and len(count.chunks) == len(answers):
        tokens = sum(of for of, is_answer in zip(count.chunks, answers, strict=True) if not is_answer)
    first_s = answer.chunks[answers.index(True)].time_s if answer.streamed and any(answers) else None
    return {"reasoning_tokens": tokens, "first_answer_s": first_s}


def _phase(due_s: float, window: Window) -> str:
    if due_s < window.start_s:
        return WARMUP
    return MEASURED if due_s <= window.end_s else DRAIN


_Lengths = tuple[int, ...] | None
"""The tokens of each response; ``None`` if unknown."""


def _count(request: Request, answer: ParsedReply, reported: _Lengths, retokenized: _Count | None) -> _Count:
    if answer.usage is not None and answer.usage.output_tokens is not None:
        return _count_by_usage(answer, answer.usage.output_tokens, retokenized)
    if answer.streamed and not _in_one_piece(request, answer):
        return _count_stream(answer.chunks, reported, retokenized)
    count = _count_whole(request, answer, reported, retokenized)
    if answer.streamed and answer.chunks:
        return replace(count, chunks=(count.tokens,), chunks_by=count.by)
    return count


def _count_by_usage(answer: ParsedReply, tokens: int, retokenized: _Count | None) -> _Count:
    """The server's total. Each response of a stream counts as one token, unless these are too few."""
    count, responses = _Count(tokens, BY_USAGE), len(answer.chunks)
    if not answer.streamed or not responses:
        return count
    if responses == 1:
        return replace(count, chunks=(tokens,), chunks_by=BY_USAGE)
    if responses < tokens and retokenized is not None and retokenized.chunks:
        return replace(count, chunks=retokenized.chunks, chunks_by=retokenized.by)
    return replace(count, chunks=(1,) * responses, chunks_by=BY_RESPONSES)


def _count_whole(
    request: Request, answer: ParsedReply, reported: _Lengths, retokenized: _Count | None
) -> _Count:
    tokens = _without_prompt(request, answer, reported)
    if tokens is not None:
        return _Count(tokens, BY_MODEL)
    if not answer.chunks:
        return _Count(0, BY_RESPONSES)
    return retokenized or _Count(request.max_tokens, BY_REQUEST)


def _without_prompt(request: Request, answer: ParsedReply, reported: _Lengths) -> int | None:
    """The length of an unstreamed answer as the model reports it, without a repeated prompt."""
    ids = answer.token_ids
    if ids is not None:
        return len(ids) - (len(request.token_ids or ()) if _repeats_prompt(request, answer) else 0)
    if not reported or not _repeats_prompt(request, answer):
        return sum(reported) if reported else None
    return None if request.input_tokens is None else sum(reported) - request.input_tokens


def _count_stream(chunks: Sequence[Chunk], reported: _Lengths, retokenized: _Count | None) -> _Count:
    """The tokens of a stream; a response with output has at least one."""
    ids = [chunk.token_ids for chunk in chunks]
    if ids and None not in ids:
        reported = tuple(len(known) for known in ids if known is not None)
    if reported is not None:
        return _Count(sum(reported), BY_MODEL, reported, BY_MODEL)
    return retokenized or _Count(len(chunks), BY_RESPONSES, (1,) * len(chunks), BY_RESPONSES)


def _reported_lengths(parsed: Sequence[ParsedReply]) -> list[_Lengths]:
    """The tokens of each response as the model reports them; ``None`` for an answer without.

    If the lengths of every answer grow with each response, they are those of the
    answer so far. Of a single answer they may grow because its server fell behind.
    """
    found = [
        tuple(chunk.sequence_length for chunk in answer.chunks if chunk.sequence_length is not None)
        for answer in parsed
    ]
    several = [lengths for lengths in found if len(lengths) > 1]
    if several and all(after > before for lengths in several for before, after in pairwise(lengths)):
        found = [tuple(after - before for before, after in pairwise([0, *lengths])) for lengths in found]
    return [
        lengths if len(lengths) == len(answer.chunks) else None
        for lengths, answer in zip(found, parsed, strict=True)
    ]


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
    unknown = [
        at
        for at, answer in enumerate(parsed)
        if answer.text is not None and any(chunk.sequence_length is None for chunk in answer.chunks)
    ]
    whole = [at for at in unknown if not parsed[at].streamed or _in_one_piece(requests[at], parsed[at])]
    streams = sorted(set(unknown) - set(whole))
    texts = {at: [chunk.text or "" for chunk in parsed[at].chunks] for at in unknown}
    responses = _retokenize_streams([texts[at] for at in streams], tokenizer)
    for at, lengths in zip(streams, responses, strict=True):
        if max(lengths, default=1) > 1:
            chunks = _at_most(lengths, requests[at].max_tokens)
            counts[at] = _Count(sum(chunks), tokenizer.counted_by, chunks, tokenizer.counted_by)
    answers = [("".join(texts[at]), requests[at]) for at in whole]
    for at, tokens in zip(whole, _retokenize_whole(answers, tokenizer), strict=True):
        counts[at] = _Count(tokens, tokenizer.counted_by)
    return counts


def _at_most(lengths: Sequence[int], most: int) -> tuple[int, ...]:
    """Lower the largest lengths until they add up to no more than was requested."""
    lowered = list(lengths)
    for _ in range(max(0, sum(lengths) - max(most, len(lengths)))):
        lowered[lowered.index(max(lowered))] -= 1
    return tuple(lowered)


class _TextCounter:
    """Counts the tokens of texts without special ones; U+FFFD stands for one token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.special, one, two = map(len, tokenizer.encode(["", f"a{_REPLACEMENT}", f"a{_REPLACEMENT * 2}"]))
        # Further tokens for each U+FFFD that the tokenizer splits.
        self._extra_per_replacement = max(0, two - one - 1)

    def lengths(self, texts: Sequence[str]) -> Iterator[int]:
        for begin in range(0, len(texts), _BATCH):
            batch = texts[begin : begin + _BATCH]
            for text, ids in zip(batch, self._tokenizer.encode(batch), strict=True):
                extra = self._extra_per_replacement * text.count(_REPLACEMENT)
                yield len(ids) - self.special - extra


def _retokenize_whole(texts: Sequence[tuple[str, Request]], tokenizer: Tokenizer) -> Iterator[int]:
    """Yield the tokens of unstreamed answers without a repeated prompt, at most the requested number."""
    if not texts:
        return
    counter = _TextCounter(tokenizer)
    lengths = counter.lengths([text for text, _ in texts])
    for (text, request), tokens in zip(texts, lengths, strict=True):
        if request.input_tokens is not None and request.prompt and text.startswith(request.prompt):
            tokens -= request.input_tokens - counter.special
        yield min(max(tokens, 0), request.max_tokens)


def _retokenize_streams(streams: Sequence[Sequence[str]], tokenizer: Tokenizer) -> list[list[int]]:
    """The tokens of each response of each stream, at least one.

    Text by itself may have more tokens than it has within a longer text. So where the
    texts of single tokens are unknown, each response is one token unless most have more.
    """
    if tokenizer.token_texts is None and not _most_have_several(streams, tokenizer):
        return [[1] * len(stream) for stream in streams]
    lengths = _text_lengths((text for stream in streams for text in stream), tokenizer)
    return [_response_lengths(stream, lengths) for stream in streams]


def _most_have_several(streams: Sequence[Sequence[str]], tokenizer: Tokenizer) -> bool:
    """Whether most responses have several tokens, by a sample: the server may count them one by one."""
    texts = [text for stream in streams for text in stream if text and _REPLACEMENT not in text]
    sample = texts[:: max(1, len(texts) // _SAMPLE)]
    lengths = _text_lengths(sample, tokenizer)
    return sum(lengths[text] > 1 for text in sample) * 2 > len(sample)


def _text_lengths(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, int]:
    """The tokens of each text; at least one, since a response without text has a special token."""
    found = dict.fromkeys(texts, 1)
    single = tokenizer.token_texts or frozenset()
    others = [text for text in found if text and text not in single]
    if others:
        lengths = _TextCounter(tokenizer).lengths(others)
        found.update((text, max(1, length)) for text, length in zip(others, lengths, strict=True))
    return found


def _response_lengths(stream: Sequence[str], lengths: Mapping[str, int]) -> list[int]:
    """The tokens of each response of one stream.

    A letter that was held back begins the text after the empty responses of its
    first tokens, which have been counted there.
    """
    found, empty = [], 0
    for text in stream:
        held_back = 0
        if text and text[0] != _REPLACEMENT:
            held_back = min(empty, len(text[0].encode(errors="replace")) - 1)
        found.append(max(1, lengths[text] - held_back))
        empty = 0 if text else empty + 1
    return found
