from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtllm_hpc.bench.load.messages import Chunk, LoadReply, ParsedReply
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.results import Window
from trtllm_hpc.bench.token_counts import to_records
from trtllm_hpc.bench.workload.request import WorkloadRequest
from trtllm_hpc.wire.response import Usage

from .workload.helpers import WordTokenizer

PROMPT = WorkloadRequest(10, "what is it", input_tokens=4, input_by="tokenizer")
IDS = WorkloadRequest(10, token_ids=(5, 6, 7), input_tokens=3, input_by="workload")


def reply(index: int = 0, due_s: float = 1.0, status: str = "ok") -> LoadReply:
    return LoadReply(index, due_s, due_s + 0.5, due_s + 9.0, status=status)


def answer(*texts: str, streamed: bool = False, usage: Usage | None = None) -> ParsedReply:
    """An answer of a text model, with a response each second."""
    return ParsedReply(tuple(Chunk(2.0 + at, text=text) for at, text in enumerate(texts)), streamed, usage)


def ids(*responses: tuple[int, ...], streamed: bool = False) -> ParsedReply:
    """An answer of the core model."""
    return ParsedReply(tuple(Chunk(2.0 + at, token_ids=each) for at, each in enumerate(responses)), streamed)


def records(
    replies: Sequence[LoadReply],
    parsed: Sequence[ParsedReply],
    requests: Sequence[WorkloadRequest],
    **more: Any,
) -> list[RequestRecord]:
    options = {"level": 0, "repeat": 0, "window": Window(0.0, 9.0), **more}
    return to_records(replies, parsed, requests, **options)


def record(
    parsed: ParsedReply, request: WorkloadRequest = PROMPT, tokenizer: Any = None, **more: Any
) -> RequestRecord:
    status = more.pop("status", "ok")
    (result,) = records([reply(status=status)], [parsed], [request], tokenizer=tokenizer, **more)
    return result


def output(result: RequestRecord) -> tuple[int | None, str | None]:
    return result.output_tokens, result.output_by


def test_a_record_combines_reply_and_request() -> None:
    replies = [reply(3, 1.0), reply(1, 5.0, "DEADLINE_EXCEEDED")]
    replies[1].error = "too late"
    place = {"level": 2, "repeat": 1, "window": Window(5.0, 9.0)}
    first, second = records(replies, [answer("x"), ParsedReply()], [IDS, IDS, IDS, PROMPT], **place)
    assert (first.index, first.level, first.repeat, first.phase) == (3, 2, 1, "warm-up")
    assert (first.scheduled_s, first.sent_s, first.ended_s) == (1.0, 1.5, 10.0)
    assert (first.requested_tokens, first.input_tokens, first.input_by) == (10, 4, "tokenizer")
    assert (second.phase, second.status, second.error) == ("measured", "DEADLINE_EXCEEDED", "too late")
    assert output(second) == (None, None)


def test_the_servers_own_count_comes_first() -> None:
    usage = Usage(input_tokens=9, output_tokens=7, cached_tokens=8)
    result = record(answer("so", " it", streamed=True, usage=usage), tokenizer=WordTokenizer())
    assert (output(result), result.chunk_tokens) == ((7, "server"), (1, 1))
    assert (result.input_tokens, result.input_by, result.cached_tokens) == (9, "server", 8)


def test_the_core_models_ids_are_counted_without_a_repeated_prompt() -> None:
    assert output(record(ids((5, 6, 7, 8, 9)), IDS)) == (2, "server")
    assert output(record(ids((8, 9, 9)), IDS)) == (3, "server"), "the model does not repeat the prompt"
    assert record(ids((5, 6, 7, 8, 9)), IDS).chunks_s == (), "nothing was streamed"
    assert record(ids((5, 6, 7, 8, 9), streamed=True), IDS).chunk_tokens == (2,)


def test_streamed_ids_are_counted_by_response() -> None:
    result = record(ids((8,), (9, 9), (8,), streamed=True), IDS)
    assert (result.chunks_s, result.chunk_tokens) == ((2.0, 3.0, 4.0), (1, 2, 1))
    assert output(result) == (4, "server")


def test_a_text_is_tokenized_without_prompt_and_special_tokens() -> None:
    assert output(record(answer("so it is"), tokenizer=WordTokenizer(ends=True))) == (3, "tokenizer")
    repeated = answer("what is it so it is", streamed=True)
    result = record(repeated, tokenizer=WordTokenizer())
    assert (output(result), result.chunk_tokens) == ((3, "tokenizer"), (3,))


def test_a_stream_is_tokenized_as_a_whole_and_each_response_is_a_token_at_least() -> None:
    joined = record(answer("so it", " is", " as said", streamed=True), tokenizer=WordTokenizer())
    assert (output(joined), joined.chunk_tokens) == ((5, "tokenizer"), (1, 1, 1))
    pieces = record(answer("s", "o", " it", "", streamed=True), tokenizer=WordTokenizer())
    assert output(pieces) == (4, "tokenizer")


def test_a_replacement_character_is_one_token() -> None:
    class Bytes(WordTokenizer):
        def encode(self, texts: Sequence[str]) -> list[list[int]]:
            return [list(text.encode()) for text in texts]

    assert output(record(answer("a\ufffdb\ufffd\ufffd"), tokenizer=Bytes())) == (5, "tokenizer")


def test_an_empty_answer_has_no_tokens() -> None:
    assert output(record(answer(""), tokenizer=WordTokenizer())) == (0, "tokenizer")
    assert record(ParsedReply((), True)).output_tokens == 0


def test_without_a_count_the_tokens_are_unknown() -> None:
    result = record(answer("so", " it", streamed=True))
    assert (output(result), result.chunk_tokens) == ((None, None), (1, 1))


def test_a_stream_that_broke_off_has_its_chunks_but_no_total() -> None:
    result = record(answer("so", " it", streamed=True), status="UNAVAILABLE")
    assert (result.chunks_s, result.chunk_tokens) == ((2.0, 3.0), (1, 1))
    assert output(result) == (None, None)
