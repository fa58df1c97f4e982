"""Clients written to upstream's documentation, as its users write them, on real servers.

Inputs, shapes and ways to read an answer are those of ``end_to_end_grpc_client.py``,
``inflight_batcher_llm_client.py`` and ``tools/inflight_batcher_llm/end_to_end_test.py`` of NVIDIA's
tensorrtllm_backend v0.9.0 to v0.18.2, and of the ``curl`` lines of its README.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from trtllm_hpc.gateway.tokenizer import ModelTokenizer

from . import servers
from .clients import are_of_tokens, ask_one, token_inputs, tokens
from .servers import World

pytestmark = pytest.mark.triton

Arrays = Mapping[str, np.ndarray[Any, Any]]

TEXT_MODELS = ("ensemble", "tensorrt_llm_bls")
QUESTION = "What is machine learning?"


def sent(arrays: Arrays, protocol: Any) -> list[Any]:
    """The inputs as upstream's ``prepare_tensor`` makes them."""
    made = []
    for name, array in arrays.items():
        tensor = protocol.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def client(world: World, protocol: Any) -> Any:
    port = world.grpc_port if protocol is over_grpc else world.http_port
    return protocol.InferenceServerClient(f"127.0.0.1:{port}")


def text_inputs(texts: list[str], tokens: int, **more: Any) -> dict[str, np.ndarray[Any, Any]]:
    """What ``end_to_end_grpc_client.py`` always sends, each value once for each text."""
    count = len(texts)
    return {
        "text_input": np.array([[text] for text in texts]).astype(object),
        "max_tokens": np.full((count, 1), tokens, dtype=np.int32),
        "stream": np.full((count, 1), more.pop("stream", False), dtype=bool),
        "beam_width": np.full((count, 1), more.pop("beam_width", 1), dtype=np.int32),
        "temperature": np.full((count, 1), 1.0, dtype=np.float32),
        "end_id": np.full((count, 1), 2, dtype=np.int32),
        "pad_id": np.full((count, 1), 2, dtype=np.int32),
        "exclude_input_in_output": np.full((count, 1), False, dtype=bool),
        **more,
    }


def streamed(world: World, model: str, arrays: Arrays, outputs: list[str]) -> list[Any]:
    """The answers that come on a gRPC stream until the server closes it; an error raises."""
    answers: queue.Queue[Any] = queue.Queue()
    with client(world, over_grpc) as triton:
        triton.start_stream(callback=lambda result, error: answers.put(error or result))
        wanted = [over_grpc.InferRequestedOutput(name) for name in outputs]
        triton.async_stream_infer(model, sent(arrays, over_grpc), outputs=wanted, request_id="1")
        triton.stop_stream()
    found = [answers.get(block=False) for _ in range(answers.qsize())]
    for answer in found:
        if isinstance(answer, InferenceServerException):
            raise answer
    return found


def text_of(answer: Any) -> str:
    """As every one of upstream's clients reads it."""
    output = answer.as_numpy("text_output")
    return str(output[0].decode("utf-8"))


def index(answer: Any, name: str) -> int:
    found = answer.as_numpy(name)
    return 0 if found is None else int(found[0][0])


@pytest.mark.parametrize("model", TEXT_MODELS)
@pytest.mark.parametrize(
    "more",
    [
        {"bad_words": "", "stop_words": ""},
        {"bad_words": "", "stop_words": "", "pad_id": 2, "end_id": 2},
        {
            "bad_words": "",
            "stop_words": ["focuses", "learn"],
            "pad_id": 2,
            "end_id": 2,
        },
    ],
)
def test_curl_lines_of_the_readme(world: World, model: str, more: dict[str, Any]) -> None:
    status, answer = world.generate({"text_input": QUESTION, "max_tokens": 20, **more}, model)
    assert status == 200
    assert answer["model_name"] == model
    assert answer["text_output"].startswith(QUESTION)


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_id_of_a_generate_request_comes_back(world: World, model: str) -> None:
    body = {"id": "seven", "text_input": "x", "parameters": {"max_tokens": 2, "stream": False}}
    status, answer = world.generate(body, model)
    assert (status, answer["id"]) == (200, "seven")
    assert isinstance(answer["text_output"], str)


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_generate_stream_sends_a_text_with_each_event(alone: World, model: str) -> None:
    events = alone.generate_stream(
        {"text_input": QUESTION, "max_tokens": 5, "stream": True, "end_id": -1}, model
    )
    assert 1 < len(events) <= 5
    assert all(isinstance(event["text_output"], str) for event in events)


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_end_to_end_client_reads_a_whole_answer(world: World, model: str) -> None:
    wanted = {"return_log_probs": np.array([[True]]), "return_context_logits": np.array([[False]])}
    outputs = ["text_output", "cum_log_probs", "output_log_probs"]
    (answer,) = streamed(world, model, text_inputs([QUESTION], 6, **wanted), outputs)
    assert text_of(answer).startswith(QUESTION)
    assert answer.as_numpy("text_output").shape == (1,)
    assert answer.as_numpy("cum_log_probs").shape == (1, 1)
    assert answer.as_numpy("output_log_probs").shape[:2] == (1, 1)


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_end_to_end_client_joins_a_stream(alone: World, model: str) -> None:
    answers = streamed(alone, model, text_inputs([QUESTION], 6, stream=True), ["text_output"])
    assert 1 <= len(answers) <= 6
    assert "".join(text_of(answer) for answer in answers)


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_end_to_end_client_reads_batches(alone: World, model: str) -> None:
    batch = streamed(alone, model, text_inputs([QUESTION, "x"], 4), ["text_output", "batch_index"])
    texts = {index(answer, "batch_index"): text_of(answer) for answer in batch}
    assert sorted(texts) == [0, 1]
    assert texts[0].startswith(QUESTION)


@pytest.mark.parametrize("protocol", [over_grpc, over_http], ids=["grpc", "http"])
def test_end_to_end_test_finds_the_ensemble_equal_to_its_parts(pair: World, protocol: Any) -> None:
    """Preprocessing, ``tensorrt_llm`` and postprocessing one by one, then both models that join them."""
    empty = np.array([[""]], dtype=object)
    with client(pair, protocol) as triton:

        def ask(model: str, arrays: Arrays) -> Callable[[str], Any]:
            found: Callable[[str], Any] = triton.infer(model, sent(arrays, protocol), request_id="3").as_numpy
            return found

        texts = {
            "text_input": np.array([[QUESTION]]).astype(object),
            "max_tokens": np.full((1, 1), 8, np.int32),
        }
        prepared = ask(
            "preprocessing",
            {
                "QUERY": texts["text_input"],
                "BAD_WORDS_DICT": empty,
                "STOP_WORDS_DICT": empty,
                "REQUEST_OUTPUT_LEN": texts["max_tokens"],
            },
        )
        generated = ask(
            "tensorrt_llm",
            {
                "input_ids": prepared("INPUT_ID"),
                "decoder_input_ids": prepared("DECODER_INPUT_ID"),
                "input_lengths": prepared("REQUEST_INPUT_LEN"),
                "request_output_len": prepared("REQUEST_OUTPUT_LEN"),
                "end_id": prepared("OUT_END_ID"),
                "pad_id": prepared("OUT_PAD_ID"),
            },
        )
        whole = ask(
            "postprocessing",
            {"TOKENS_BATCH": generated("output_ids"), "SEQUENCE_LENGTH": generated("sequence_length")},
        )("OUTPUT")
        assert whole.shape == (1,)
        for model in TEXT_MODELS:
            assert ask(model, {**texts, "bad_words": empty, "stop_words": empty})("text_output") == whole


def test_in_flight_client_reads_tokens(alone: World) -> None:
    """With every input that it can send and that asks for nothing."""
    prompt = np.array([[1, 50, 60, 70]], dtype=np.int32)
    answers = streamed(
        alone,
        "tensorrt_llm",
        {
            "input_ids": prompt,
            "input_lengths": np.array([[4]], dtype=np.int32),
            "request_output_len": np.array([[5]], dtype=np.int32),
            "beam_width": np.array([[1]], dtype=np.int32),
            "temperature": np.array([[1.0]], dtype=np.float32),
            "streaming": np.array([[True]]),
            "end_id": np.array([[-1]], dtype=np.int32),
            "pad_id": np.array([[2]], dtype=np.int32),
            "runtime_top_k": np.array([[1]], dtype=np.int32),
            "runtime_top_p": np.array([[0.0]], dtype=np.float32),
            "decoder_input_ids": np.array([[2]], dtype=np.int32),
            "prompt_table_extra_ids": np.zeros((1, 4), dtype=np.uint64),
            "return_kv_cache_reuse_stats": np.array([[False]]),
            "return_log_probs": np.array([[True]]),
        },
        ["output_ids", "sequence_length", "cum_log_probs", "output_log_probs"],
    )
    tokens = [token for answer in answers for token in answer.as_numpy("output_ids")[0][0].tolist()]
    assert len(tokens) == 5
    assert all(answer.as_numpy("sequence_length")[0][0] > 0 for answer in answers)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("decoder_text_input", np.array([["x"]], dtype=object)),
        ("prompt_embedding_table", np.ones((1, 2, 2), dtype=np.float16)),
        ("beam_width", np.array([[3]], dtype=np.int32)),
        ("bad_words", np.array([["intelligence"]], dtype=object)),
    ],
)
@pytest.mark.parametrize("model", TEXT_MODELS)
def test_what_this_backend_does_not_have_is_refused_by_its_name(
    alone: World, model: str, name: str, array: Any
) -> None:
    with pytest.raises(InferenceServerException, match=f"{name}.* asks for .*does not have"):
        streamed(alone, model, {**text_inputs([QUESTION], 4), name: array}, ["text_output"])


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


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"text_input": "x", "temperature": 0.5}, "max_tokens"),
        ({"max_tokens": 3, "temperature": 0.5}, "text_input"),
    ],
)
def test_missing_input_is_named_where_another_one_is_sent(
    world: World, body: dict[str, Any], name: str
) -> None:
    """Triton only counts the inputs that must be there; an ensemble then answers with nothing."""
    status, answer = world.generate(body, "tensorrt_llm_bls")
    assert status == 400
    assert name in answer["error"]
