"""Clients written to upstream's documentation, as its users write them, on real servers.

Inputs, shapes and ways to read an answer are those of ``end_to_end_grpc_client.py``,
``inflight_batcher_llm_client.py`` and ``tools/inflight_batcher_llm/end_to_end_test.py`` of NVIDIA's
tensorrtllm_backend v0.9.0 to v0.18.2, and of the ``curl`` lines of its README.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtllm_hpc.gateway.tokenizer import ModelTokenizer

from . import servers
from .clients import are_of_tokens, ask, ask_one, token_inputs, tokens
from .servers import World

pytestmark = pytest.mark.triton

TEXT_MODELS = ("ensemble", "tensorrt_llm_bls")
QUESTION = "What is machine learning?"
TEXT: dict[str, Any] = {
    **{"text_input": QUESTION, "beam_width": 1, "temperature": 1.0, "end_id": 2, "pad_id": 2},
    **{"exclude_input_in_output": False, "return_context_logits": False},
}
"""What ``end_to_end_grpc_client.py`` always sends."""


def text_of(answer: Any) -> str:
    """As every one of upstream's clients reads it."""
    return str(answer.as_numpy("text_output")[0].decode("utf-8"))


@pytest.mark.parametrize("model", TEXT_MODELS)
@pytest.mark.parametrize("stop_words", ["", ["focuses", "learn"]])
def test_curl_lines_of_the_readme(world: World, model: str, stop_words: Any) -> None:
    words = {"bad_words": "", "stop_words": stop_words, "pad_id": 2, "end_id": 2}
    status, answer = world.generate({"text_input": QUESTION, "max_tokens": 20, **words}, model)
    assert (status, answer["model_name"]) == (200, model)
    assert answer["text_output"].startswith(QUESTION)


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_end_to_end_client_reads_answers(alone: World, model: str) -> None:
    answer = ask_one(alone, model, {**TEXT, "max_tokens": 6, "return_log_probs": True})
    assert text_of(answer).startswith(QUESTION) and answer.as_numpy("text_output").shape == (1,)
    assert answer.as_numpy("cum_log_probs").shape == (1, 1)
    assert answer.as_numpy("output_log_probs").shape[:2] == (1, 1)
    answers = ask(alone, model, {**TEXT, "max_tokens": 6, "stream": True})
    assert 1 <= len(answers) <= 6 and "".join(text_of(answer) for answer in answers)


def test_end_to_end_test_finds_the_ensemble_equal_to_its_parts(pair: World) -> None:
    """Preprocessing, ``tensorrt_llm`` and postprocessing one by one, then both models that join them."""
    words = {"BAD_WORDS_DICT": "", "STOP_WORDS_DICT": ""}
    asked = {"QUERY": QUESTION, "REQUEST_OUTPUT_LEN": 8, **words}
    prepared = ask_one(pair, "preprocessing", asked).as_numpy
    names = {
        "input_ids": "INPUT_ID",
        "decoder_input_ids": "DECODER_INPUT_ID",
        "input_lengths": "REQUEST_INPUT_LEN",
        "request_output_len": "REQUEST_OUTPUT_LEN",
        "end_id": "OUT_END_ID",
        "pad_id": "OUT_PAD_ID",
    }
    values = {name: prepared(output) for name, output in names.items()}
    generated = ask_one(pair, "tensorrt_llm", values).as_numpy
    sent = {"TOKENS_BATCH": generated("output_ids"), "SEQUENCE_LENGTH": generated("sequence_length")}
    whole = ask_one(pair, "postprocessing", sent).as_numpy("OUTPUT")
    assert whole.shape == (1,)
    for model in TEXT_MODELS:
        texts = {"text_input": QUESTION, "max_tokens": 8, "bad_words": "", "stop_words": ""}
        assert ask_one(pair, model, texts).as_numpy("text_output") == whole


def test_in_flight_client_reads_tokens(alone: World) -> None:
    """With every input that it can send and that asks for nothing."""
    nothing = {
        **{"beam_width": 1, "temperature": 1.0, "streaming": True, "end_id": -1, "pad_id": 2},
        **{"runtime_top_k": 1, "runtime_top_p": 0.0, "decoder_input_ids": [[2]], "return_log_probs": True},
        "prompt_table_extra_ids": np.zeros((1, 4), dtype=np.uint64),
        "return_kv_cache_reuse_stats": False,
    }
    answers = ask(alone, "tensorrt_llm", token_inputs([1, 50, 60, 70], 5, **nothing))
    assert len([token for answer in answers for token in tokens(answer)]) == 5


STREAMS = 48


@pytest.mark.thorough
def test_texts_of_many_streams_come_in_order_from_several_instances(
    engines: dict[int, Path], tmp_path: Path, tokenizer: ModelTokenizer
) -> None:
    """Without an order in the configuration a third of them did not."""
    prompts = [f"prompt {number}" for number in range(STREAMS)]
    bodies = [{"text_input": prompt, "max_tokens": 60, "stream": True, "end_id": -1} for prompt in prompts]
    options: dict[str, Any] = {"decoupled": True, "postprocessing_instances": 4}
    with servers.serve(tmp_path, engines[1], **options) as world, ThreadPoolExecutor(STREAMS) as threads:
        at_once = list(threads.map(world.generate_stream, bodies))
        for prompt, events in zip(prompts, at_once, strict=True):
            inputs = token_inputs(tokenizer.encode(prompt), 60, end_id=-1, exclude_input_in_output=True)
            answer = tokens(ask_one(world, "tensorrt_llm", inputs))
            texts = [event["text_output"] for event in events]
            assert are_of_tokens(texts, answer, tokenizer, accumulates=False)
