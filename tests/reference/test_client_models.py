"""The client's ways to ask: token ids, batches, adapters, all ways compared, other servers by their URL."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from trtllm_hpc.cli.client import command
from trtllm_hpc.client.async_client import AsyncClient
from trtllm_hpc.client.connect import Address
from trtllm_hpc.client.request import Answer
from trtllm_hpc.client.sync_client import Client
from trtllm_hpc.errors import ExitCode, InvalidRequest, RequestFailed
from trtllm_hpc.gateway.tokenizer import ModelTokenizer
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import Endpoint

from .clients import steps, wait_idle, wait_until
from .conftest import AskRun
from .servers import World

pytestmark = pytest.mark.triton

PROMPT = "What is machine learning?"
PROMPTS = [PROMPT, "Born in north-east France,", "A"]
MODELS = ["ensemble", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls"]
OPTIONS: dict[str, Any] = {"max_tokens": 8, "end_id": -1}


def records(said: Any) -> list[dict[str, Any]]:
    assert said.exit_code == 0, (said.output, said.exception)
    return [json.loads(line) for line in said.stdout.splitlines()]


def test_a_model_that_takes_ids_is_asked_a_text(endpoint: Endpoint) -> None:
    with Client(endpoint, "ensemble") as ensemble, Client(endpoint, "tensorrt_llm") as core:
        assert core.generate(PROMPT, **OPTIONS).text == ensemble.generate(PROMPT, **OPTIONS).text
        with pytest.raises(RequestFailed, match=r"EMBEDDING_BIAS_WORDS.* asks for a bias"):
            core.generate(PROMPT, embedding_bias_words=["the"], embedding_bias_weights=[1e4])
        with pytest.raises(RequestFailed, match=r"BAD_WORDS_DICT.* asks for bad words"):
            core.generate(PROMPT, bad_words=["the"])
        sampled: dict[str, Any] = {"temperature": 5.0, "top_k": 50, "seed": 7, **OPTIONS}
        assert core.generate(PROMPT, **sampled).text == ensemble.generate(PROMPT, **sampled).text


def test_token_ids_are_asked_and_answered(endpoint: Endpoint, tokenizer: ModelTokenizer) -> None:
    ids = tokenizer.encode(PROMPT)
    with Client(endpoint, "tensorrt_llm") as core, Client(endpoint, "ensemble") as ensemble:
        answer = core.generate(ids, **OPTIONS, exclude_input=True)
        assert len(answer.token_ids[0]) == answer.output_tokens == 8
        assert answer.text == core.generate(PROMPT, **OPTIONS, exclude_input=True).text
        with Client(endpoint, "tensorrt_llm", protocol="http") as over_http:
            assert over_http.generate(ids, **OPTIONS, exclude_input=True).token_ids == answer.token_ids
        with pytest.raises(InvalidRequest, match="takes text, not token ids"):
            ensemble.generate(ids)
        with pytest.raises(InvalidRequest, match="--stop-words as token ids"):
            core.generate(ids, stop_words=["the"])
        with pytest.raises(InvalidRequest, match=r"4294967296 does not fit .* int32"):
            core.generate([2**32])


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls", "tensorrt_llm"])
def test_the_answers_of_a_batch_are_put_back_in_order(endpoint: Endpoint, model: str) -> None:
    with Client(endpoint, model) as client:
        one_by_one = [client.generate(prompt, **OPTIONS).text for prompt in PROMPTS]
        together = client.batch(PROMPTS, together=True, **OPTIONS, log_probs=True)
        assert [answer.text for answer in together] == one_by_one
        assert len({answer.request_id for answer in together}) == 1
        assert all(len(answer.log_probs or ()) == 8 for answer in together)


def test_a_batch_of_ids_of_different_lengths(endpoint: Endpoint, tokenizer: ModelTokenizer) -> None:
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    with Client(endpoint, "tensorrt_llm") as client:
        together = client.batch(prompts, together=True, **OPTIONS, exclude_input=True)
        alone = [client.generate(prompt, **OPTIONS, exclude_input=True) for prompt in prompts]
        assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
    with (
        Client(endpoint, protocol="http") as over_http,
        pytest.raises(InvalidRequest, match="over gRPC only"),
    ):
        over_http.batch(PROMPTS, together=True)


def test_a_request_is_ended_by_its_id_from_another_client(endpoint: Endpoint, alone: World) -> None:
    options: dict[str, Any] = {"max_tokens": 400, "end_id": -1, "exclude_input": True}

    async def ask_and_cancel(model: str) -> Answer:
        async with AsyncClient(endpoint, model) as asking, AsyncClient(endpoint, model) as other:
            request = asyncio.ensure_future(asking.generate(PROMPT, request_id="mine", **options))
            before = steps(alone)
            await asyncio.to_thread(wait_until, lambda: steps(alone) > before)
            await other.cancel("mine")
            return await request

    def is_cut(model: str) -> bool:
        wait_idle(alone)
        answer = asyncio.run(ask_and_cancel(model))
        assert (len(answer.texts), answer.is_stopped) == (1, False)
        with Client(endpoint, model) as client:
            whole = client.generate(PROMPT, **options).text
        assert whole.startswith(answer.text)
        return len(answer.text) < len(whole)

    for model in ("ensemble", "tensorrt_llm"):
        # On a fast machine an answer may be over before the other client has asked for its end.
        assert any(is_cut(model) for _ in range(10))


# What TensorRT-LLM has and the reference backend has not ---------------------------------------------


def test_beams_and_bad_words_reach_the_model(endpoint: Endpoint) -> None:
    with Client(endpoint, "recorded") as client:
        answer = client.generate("A", beam_width=3, bad_words=["no", "not"], return_sequences=3)
    assert answer.texts == tuple(f"A without no, not {beam}" for beam in range(3))


def test_logits_are_written_into_the_run_folder(ask_run: AskRun, run: RunPaths) -> None:
    words = (PROMPT, "--model", "recorded", "--save", "--no-stream", "--json")
    records(ask_run(*words, "--generation-logits", "--context-logits"))
    assert np.load(run.logits("generation_logits")).shape == (1, 1, 3, 512)
    assert np.load(run.logits("context_logits")).shape == (1, 3, 512)


def write_adapter(folder: Path, seed: int) -> str:
    folder.mkdir()
    values = np.random.default_rng(seed).normal(0, 2, (1, 2, 64)).astype(np.float16)
    np.save(folder / "model.lora_weights.npy", values)
    np.save(folder / "model.lora_config.npy", np.array([[[1, 0, 2], [1, 1, 2]]], dtype=np.int32))
    return str(folder)


def test_the_seeds_six_prompts_with_two_adapters(ask_run: AskRun, tmp_path: Path) -> None:
    one, two = write_adapter(tmp_path / "one", 1), write_adapter(tmp_path / "two", 2)
    words = ["--json", "--model", "recorded", "--no-stream", "latest", *[PROMPT] * 6]
    folders = ["", one, two, "", one, two]
    given = [word for folder in folders for word in ("--lora-dir", folder)]
    found = [it["answers"][0]["text"] for it in records(ask_run(*given, *words))]
    assert found[:3] == found[3:] and len(set(found)) == 3


def test_an_evicted_adapter_is_sent_again(endpoint: Endpoint, tmp_path: Path) -> None:
    from trtllm_hpc import read_adapter

    folders = [Path(write_adapter(tmp_path / str(number), number)) for number in range(9)]
    adapters = [read_adapter(folder) for folder in folders]
    with Client(endpoint, "recorded") as client:
        first = [client.generate(PROMPT, adapter=it).text for it in adapters]
        again = [client.generate(PROMPT, adapter=it).text for it in adapters]
        assert first == again and len(set(first)) == 9
        # The server knows the last adapter by its number.
        assert client.generate(PROMPT, lora_task_id=adapters[-1].task_id).text == first[-1]


def test_another_server_is_asked_by_its_url(endpoint: Endpoint) -> None:
    for url in (f"http://127.0.0.1:{endpoint.http_port}", f"grpc://127.0.0.1:{endpoint.grpc_port}"):
        words = ["--url", url, PROMPT, "--max-tokens", "4", "--json"]
        [record] = records(CliRunner().invoke(command, words))
        assert record["model"] == "ensemble" and record["host"] == url
        assert record["answers"][0]["text"].startswith(PROMPT)
        with Client(Address(url), "tensorrt_llm_bls") as client:
            assert "".join(client.stream(PROMPT, **OPTIONS))
            with pytest.raises(RequestFailed, match="no_such"):
                Client(Address(url), "no_such")


def test_servers_that_are_not_there_have_their_own_exit_code() -> None:
    for url in ("http://127.0.0.1:1", "grpc://127.0.0.1:1", "http://127.0.0.1:1/v1"):
        said = CliRunner().invoke(command, ["--url", url, PROMPT, "--model", "x"])
        assert getattr(said.exception, "exit_code", None) == ExitCode.UNREACHABLE, (url, said.exception)
    for url in ("127.0.0.1:8000", "ftp://127.0.0.1", "http://"):
        said = CliRunner().invoke(command, ["--url", url, PROMPT])
        assert getattr(said.exception, "exit_code", None) == ExitCode.USAGE and "protocol" in str(
            said.exception
        )
