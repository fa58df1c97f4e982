from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from trtllm_hpc.bench.load.messages import Chunk, ParsedReply, Reply
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.results import Window
from trtllm_hpc.bench.token_counts import to_records
from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.bench.workload.tokenizers import LocalTokenizer
from trtllm_hpc.reference.synthetic import make_tokenizer

from .workload.helpers import LetterTokenizer, WordTokenizer

PROMPT = Request(10, "what is it", input_tokens=4, input_by="tokenizer")
IDS = Request(10, token_ids=(5, 6, 7), input_tokens=3, input_by="workload")


def reply(index: int = 0, due_s: float = 1.0, status: str = "ok") -> Reply:
    return Reply(index, due_s, due_s + 0.5, due_s + 9.0, status=status)


def answer(*texts: str | None, streamed: bool = False, lengths: Sequence[int | None] = ()) -> ParsedReply:
    """An answer of a text model, with a response each second."""
    reported = [*lengths, *[None] * len(texts)]
    return ParsedReply(
        tuple(Chunk(2.0 + at, text=text, sequence_length=reported[at]) for at, text in enumerate(texts)),
        streamed,
    )


def ids(*responses: tuple[int, ...], streamed: bool = False) -> ParsedReply:
    """An answer of the core model."""
    return ParsedReply(tuple(Chunk(2.0 + at, token_ids=each) for at, each in enumerate(responses)), streamed)


def records(
    replies: Sequence[Reply], parsed: Sequence[ParsedReply], requests: Sequence[Request], **more: Any
) -> list[RequestRecord]:
    options = {"level": 0, "repeat": 0, "window": Window(0.0, 9.0), **more}
    return to_records(replies, parsed, requests, **options)


def record(
    parsed: ParsedReply, request: Request = PROMPT, tokenizer: Any = None, **more: Any
) -> RequestRecord:
    status = more.pop("status", "ok")
    (result,) = records([reply(status=status)], [parsed], [request], tokenizer=tokenizer, **more)
    return result


def output(result: RequestRecord) -> tuple[int | None, str | None]:
    return result.output_tokens, result.output_by


def chunks(result: RequestRecord) -> tuple[tuple[int, ...], str | None]:
    return result.chunk_tokens, result.chunks_by


def test_a_record_combines_reply_and_request() -> None:
    replies = [reply(3, 1.0), reply(1, 5.0, "DEADLINE_EXCEEDED")]
    replies[1].error = "too late"
    place = {"level": 2, "repeat": 1, "window": Window(5.0, 9.0), "models": ["node6", "node7"]}
    first, second = records(replies, [answer("x"), ParsedReply()], [IDS, IDS, IDS, PROMPT], **place)
    assert (first.index, first.level, first.repeat, first.phase) == (3, 2, 1, "warm-up")
    assert (first.scheduled_s, first.sent_s, first.ended_s, first.instance) == (1.0, 1.5, 10.0, "node7")
    assert (first.requested_tokens, first.input_tokens, first.input_by) == (10, 4, "tokenizer")
    assert (second.phase, second.status, second.error) == ("measured", "DEADLINE_EXCEEDED", "too late")
    assert output(second) == (None, None)


def test_the_core_models_ids_are_counted_without_a_repeated_prompt() -> None:
    assert output(record(ids((5, 6, 7, 8, 9)), IDS)) == (2, "model")
    assert output(record(ids((8, 9, 9)), IDS)) == (3, "model"), "the model does not repeat the prompt"
    assert record(ids((5, 6, 7, 8, 9)), IDS).chunks_s == (), "nothing was streamed"


def test_streamed_ids_are_counted_by_response() -> None:
    result = record(ids((8,), (9, 9), (8,), streamed=True), IDS)
    assert result.chunks_s == (2.0, 3.0, 4.0)
    assert (chunks(result), output(result)) == (((1, 2, 1), "model"), (4, "model"))


def test_a_length_that_the_model_reports_is_used() -> None:
    assert output(record(answer("so it is", lengths=[7]), tokenizer=WordTokenizer())) == (7, "model")


@pytest.mark.parametrize("lengths", [(1, 1, 2), (1, 2, 4)])
def test_several_responses_without_streaming_are_counted_together(lengths: tuple[int, ...]) -> None:
    result = record(answer("a", "b", "c d", lengths=lengths))
    assert (result.chunks_s, output(result)) == ((), (4, "model"))


def test_a_reported_length_includes_a_repeated_prompt() -> None:
    repeated = answer("what is it so", lengths=[9])
    assert output(record(repeated)) == (5, "model")
    uncounted = Request(10, "what is it")
    assert output(record(repeated, uncounted)) == (10, "requested"), "the prompt's tokens are unknown"


@pytest.mark.parametrize("lengths", [(1, 1, 2), (1, 2, 4)])
def test_lengths_of_responses_are_their_own_or_cumulative(lengths: tuple[int, ...]) -> None:
    result = record(answer("a", "b", "c d", streamed=True, lengths=lengths))
    assert (chunks(result), output(result)) == (((1, 1, 2), "model"), (4, "model"))


def test_a_streamed_response_is_one_token_with_or_without_a_tokenizer() -> None:
    """A response without text is a token without text, such as the one that ends an answer."""
    parsed = answer("so", " it", "\ufffd", " is", "", streamed=True)
    for tokenizer in (None, WordTokenizer()):
        result = record(parsed, tokenizer=tokenizer)
        assert (chunks(result), output(result)) == (((1,) * 5, "responses"), (5, "responses"))


def test_responses_of_several_tokens_are_counted_by_the_tokenizer() -> None:
    parsed = answer("so it", " is", " as said", " by all men", streamed=True)
    result = record(parsed, tokenizer=WordTokenizer())
    assert (chunks(result), output(result)) == (((2, 1, 2, 3), "tokenizer"), (8, "tokenizer"))


def test_a_replacement_character_is_one_token_however_it_is_tokenized() -> None:
    class Bytes(WordTokenizer):
        def encode(self, texts: Sequence[str]) -> list[list[int]]:
            words = super().encode([text.replace("\ufffd", " ") for text in texts])
            return [
                [*found, *[0] * 3 * text.count("\ufffd")] for found, text in zip(words, texts, strict=True)
            ]

    single = record(answer("\ufffd", "\ufffd", " so", streamed=True), tokenizer=Bytes())
    assert chunks(single) == ((1, 1, 1), "responses")
    several = record(answer("so it", "\ufffd", "\ufffd", streamed=True), tokenizer=Bytes())
    assert chunks(several) == ((2, 1, 1), "tokenizer"), "replacement characters do not decide for the others"


TEXTS = ("so", " it", " is", " late", "\ufffd", " \ufffd")


def test_a_few_responses_of_several_tokens_are_seen_where_the_tokens_are_known() -> None:
    """As of a server that joins what is ready when it is behind, and otherwise sends single tokens."""
    parsed = answer("so", " it", " is", " so late", " it", streamed=True)
    result = record(parsed, tokenizer=WordTokenizer(texts=TEXTS))
    assert (chunks(result), output(result)) == (((1, 1, 1, 2, 1), "tokenizer"), (6, "tokenizer"))
    single = record(answer("so", " it", " is", streamed=True), tokenizer=WordTokenizer(texts=TEXTS))
    assert (chunks(single), output(single)) == (((1, 1, 1), "responses"), (3, "responses"))


@pytest.mark.parametrize("most", [1, 4, 32])
def test_tokens_are_counted_however_the_server_joins_them(most: int, tmp_path: Path) -> None:
    """Random tokens of the synthetic model, each response decoded by itself as ``ensemble`` does."""
    from tokenizers import Tokenizer

    make_tokenizer(tmp_path / "tokenizer")
    decode, drawn = Tokenizer.from_file(str(tmp_path / "tokenizer" / "tokenizer.json")).decode, Random(most)
    responses = [
        [drawn.choices(range(3, 512), k=drawn.randint(1, most)) for _ in range(16)] for _ in range(40)
    ]
    parsed = [answer(*map(decode, each), streamed=True) for each in responses]
    requests, replies = [Request(1000, "ask")] * len(parsed), [reply(at) for at in range(len(parsed))]
    result = records(replies, parsed, requests, tokenizer=LocalTokenizer(tmp_path / "tokenizer"))
    lengths = [tuple(map(len, each)) for each in responses]
    assert sum(each.output_tokens or 0 for each in result) == pytest.approx(sum(map(sum, lengths)), rel=0.02)
    if most == 1:
        assert {output(each) for each in result} == {(16, "responses")}


def test_a_token_counts_once_even_if_its_text_alone_would_be_encoded_as_several() -> None:
    """Such as a part of a word, or a word with a part of a letter."""
    parsed = answer("so", "rse ly", " \ufffd", "so late", streamed=True)
    result = record(parsed, tokenizer=WordTokenizer(texts=[*TEXTS, "rse ly"]))
    assert chunks(result) == ((1, 1, 1, 2), "tokenizer")


def test_a_letter_that_was_held_back_is_not_counted_again() -> None:
    """Its first tokens came in responses without text; it is then encoded with all of them."""

    class Bytes(WordTokenizer):
        def encode(self, texts: Sequence[str]) -> list[list[int]]:
            return [[0, *text.encode()] for text in texts]

    tokenizer = Bytes(texts=["a", "b", ""])
    held_back = record(answer("a", "", "", "\u20ac", "b", streamed=True), tokenizer=tokenizer)
    assert chunks(held_back) == ((1,) * 5, "responses")
    joined = record(answer("a", "", "\u20acbb", "", "bb", streamed=True), tokenizer=tokenizer)
    assert chunks(joined) == ((1, 1, 4, 1, 2), "tokenizer")


def test_a_stream_has_at_most_the_requested_tokens() -> None:
    parsed = answer("so", " it is so late as it is", " is late as it is late", streamed=True)
    result = record(parsed, tokenizer=WordTokenizer(texts=TEXTS))
    assert output(result) == (10, "tokenizer") and sum(result.chunk_tokens) == 10


def test_lengths_that_grow_by_chance_are_those_of_the_responses() -> None:
    """Of a server that fell behind in one answer and kept up in another."""
    parsed = [
        answer("a", "b c", streamed=True, lengths=(1, 2)),
        answer("a", "b", streamed=True, lengths=(1, 1)),
    ]
    result = records([reply(0), reply(1)], parsed, [PROMPT, PROMPT])
    assert [output(each) for each in result] == [(3, "model"), (2, "model")]


def test_an_unstreamed_text_is_tokenized_without_prompt_and_special_tokens() -> None:
    assert output(record(answer("so it is"), tokenizer=WordTokenizer(ends=True))) == (3, "tokenizer")
    assert output(record(answer("what is it so it is"), tokenizer=WordTokenizer())) == (3, "tokenizer")


def test_a_stream_of_one_response_is_counted_as_a_whole() -> None:
    """As of a model that does not stream, even if streaming is requested."""
    whole = answer("what is it so it is", streamed=True)
    result = record(whole, tokenizer=WordTokenizer())
    assert (chunks(result), output(result)) == (((3,), "tokenizer"), (3, "tokenizer"))
    assert (chunks(record(whole)), output(record(whole))) == (((10,), "requested"), (10, "requested"))
    core = record(ids((5, 6, 7, 8, 9), streamed=True), IDS)
    assert (chunks(core), output(core)) == (((2,), "model"), (2, "model"))


def test_a_replacement_character_in_a_whole_text_is_one_token() -> None:
    class Bytes(LetterTokenizer):
        def encode(self, texts: Sequence[str]) -> list[list[int]]:
            return [list(text.encode()) for text in texts]

    assert output(record(answer("a\ufffdb\ufffd\ufffd"), tokenizer=Bytes())) == (5, "tokenizer")


def test_at_most_the_requested_tokens_are_counted() -> None:
    assert output(record(answer("many letters"), tokenizer=LetterTokenizer())) == (10, "tokenizer")


def test_an_empty_answer_has_no_tokens() -> None:
    assert output(record(answer(""), tokenizer=WordTokenizer())) == (0, "tokenizer")
    assert record(ParsedReply((), True)).output_tokens == 0


def test_without_any_count_the_requested_number_is_recorded_as_such() -> None:
    assert output(record(answer("so it is"))) == (10, "requested")


def test_a_stream_that_broke_off_has_its_chunks_but_no_total() -> None:
    result = record(answer("so", " it", streamed=True), status="UNAVAILABLE")
    assert (result.chunks_s, result.chunk_tokens) == ((2.0, 3.0), (1, 1))
    assert output(result) == (None, None)


def test_many_answers_each_have_their_own_count() -> None:
    requests = [Request(10, f"ask {at}", input_tokens=3, input_by="tokenizer") for at in range(1200)]
    parsed = [answer("so " * (at % 5)) if at % 7 else ParsedReply() for at in range(1200)]
    result = records([reply(at) for at in range(1200)], parsed, requests, tokenizer=WordTokenizer())
    assert [each.output_tokens for each in result] == [at % 5 if at % 7 else 0 for at in range(1200)]
