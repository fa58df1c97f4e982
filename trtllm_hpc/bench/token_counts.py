"""Make the records of a pass, with the token counts of its answers.

Tokens are counted by the server (OpenAI's ``usage``, or the IDs from a core model), else by the run's
tokenizer on the answer's text, else not at all. A count from text is close but not exact: special tokens have
no text, and the model may have generated other tokens than the tokenizer does. Each response of a stream
counts as at least one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtllm_hpc.bench.load.messages import LoadReply, ParsedReply
from trtllm_hpc.bench.records import DRAIN, MEASURED, WARMUP, RequestRecord
from trtllm_hpc.bench.results import Window
from trtllm_hpc.bench.workload.request import BY_SERVER, BY_TOKENIZER, TextEncoder, WorkloadRequest
from trtllm_hpc.wire.response import Usage

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""Stands in a stream's text for a token that is a part of a UTF-8 character."""


def to_records(
    replies: Sequence[LoadReply],
    parsed: Sequence[ParsedReply],
    requests: Sequence[WorkloadRequest],
    *,
    level: int,
    repeat: int,
    window: Window,
    tokenizer: TextEncoder | None = None,
) -> list[RequestRecord]:
    """Return the records of one pass, in the order of the replies.

    A broken stream keeps its responses, but has no token count.

    Args:
        parsed: the parsed replies, see :func:`trtllm_hpc.bench.load.messages.parse_reply`.
        requests: the workload; ``index`` of a reply is an index in it.
        window: the measured part; earlier requests are warm-up, later ones drain.
        tokenizer: counts the answers that the server does not count.
    """
    sent = [requests[reply.index] for reply in replies]
    counts = _output_tokens(parsed, sent, tokenizer)
    has_reasoning = any(
        (answer.usage and answer.usage.reasoning_tokens) or any(chunk.thought for chunk in answer.chunks)
        for answer in parsed
    )
    records = []
    for reply, request, answer, (tokens, by) in zip(replies, sent, parsed, counts, strict=True):
        usage = answer.usage or Usage()
        by_server = usage.input_tokens is not None
        chunks = answer.chunks if answer.streamed else []
        # Without IDs a response counts as one token, as servers send it unless they fall behind.
        chunk_tokens = [1 if chunk.token_ids is None else len(chunk.token_ids) for chunk in chunks]
        if len(chunks) == 1 and tokens is not None:
            chunk_tokens = [tokens]
        phase = WARMUP if reply.due_s < window.start_s else MEASURED
        reasoning: dict[str, Any] = {}
        if reply.ok and has_reasoning:
            answers = [len(chunk.text or "") > chunk.thought for chunk in chunks]
            tokens_of = usage.reasoning_tokens
            if tokens_of is None and answer.streamed:
                tokens_of = answers.count(False)
            first_s = chunks[answers.index(True)].time_s if any(answers) else None
            reasoning = {"reasoning_tokens": tokens_of, "first_answer_s": first_s}
        record = RequestRecord(
            index=reply.index,
            level=level,
            repeat=repeat,
            phase=phase if reply.due_s <= window.end_s else DRAIN,
            scheduled_s=reply.due_s if reply.freed_s is None else reply.sent_s,
            sent_s=reply.sent_s,
            # Responses after the last token, such as the server's count, are not part of the answer.
            ended_s=chunks[-1].time_s if reply.ok and chunks else reply.ended_s,
            status=reply.status,
            error=reply.error,
            requested_tokens=request.max_tokens,
            chunks_s=tuple(chunk.time_s for chunk in chunks),
            chunk_tokens=tuple(chunk_tokens),
            # The server's count includes the chat template, which the prompt does not contain.
            input_tokens=usage.input_tokens if by_server else request.input_tokens,
            input_by=BY_SERVER if by_server else request.input_by,
            output_tokens=tokens if reply.ok else None,
            output_by=by if reply.ok else None,
            session=reply.session,
            turn=request.turn,
            freed_s=reply.freed_s,
            prompt_tokens=request.input_tokens if request.turn is None else None,
            cached_tokens=usage.cached_tokens,
            **reasoning,
        )
        records.append(record)
    return records


def _output_tokens(
    parsed: Sequence[ParsedReply], requests: Sequence[WorkloadRequest], tokenizer: TextEncoder | None
) -> list[tuple[int | None, str | None]]:
    """Return the number of tokens of each answer, and who counted them."""
    counts, texts = list[tuple[int | None, str | None]](), dict[int, str]()
    for at, (answer, request) in enumerate(zip(parsed, requests, strict=True)):
        count = _by_server(answer, request)
        counts.append((count, None if count is None else BY_SERVER))
        if count is None and answer.text is not None:
            repeated = (request.prompt or "") if len(answer.chunks) == 1 else ""
            texts[at] = answer.text.removeprefix(repeated)
    if tokenizer is None or not texts:
        return counts
    plain = [text.replace(_REPLACEMENT, "") for text in texts.values()]
    # The first, empty text shows how many special tokens the tokenizer adds.
    special, *encoded = map(len, tokenizer.encode(["", *plain]))
    for (at, text), tokens in zip(texts.items(), encoded, strict=True):
        responses = len(parsed[at].chunks) if parsed[at].streamed else 0
        counted = max(tokens - special + text.count(_REPLACEMENT), responses)
        counts[at] = min(counted, requests[at].max_tokens), BY_TOKENIZER
    return counts


def _by_server(answer: ParsedReply, request: WorkloadRequest) -> int | None:
    """Return the server's count, without a prompt that the model repeats; ``None`` if the server has none."""
    if answer.usage is not None and answer.usage.output_tokens is not None:
        return answer.usage.output_tokens
    ids, prompt = answer.token_ids, request.token_ids or ()
    if ids is None:
        return None if answer.chunks else 0
    repeated = len(answer.chunks) == 1 and ids[: len(prompt)] == prompt
    return len(ids) - (len(prompt) if repeated else 0)
