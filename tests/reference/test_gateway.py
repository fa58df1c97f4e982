"""The gateway in front of a real server: the official client, curl, and clients that go away."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.waiting import eventually
from trtllm_hpc.client.sync_client import Client
from trtllm_hpc.config.files import read_spec
from trtllm_hpc.gateway.tokenizer import ModelTokenizer
from trtllm_hpc.paths import RunPaths, read_json, write_json
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.records import Endpoint

from .clients import LONG, MAX_SEQ_LEN, steps, wait_idle
from .servers import MAX_BATCH_SIZE, World

pytestmark = pytest.mark.triton

NAME = "tiny-llama"
PROMPT = "What is machine learning?"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
MESSAGES: Any = [{"role": "user", "content": "Who wrote the letter?"}]
GREEDY: dict[str, Any] = {"model": NAME, "temperature": 0}


@dataclass(frozen=True)
class Gateway:
    url: str
    process: subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def endpoint(alone: World) -> Endpoint:
    return alone.endpoint


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint, engines: dict[int, Path]) -> RunPaths:
    paths = RunPaths(tmp_path_factory.mktemp("runs") / "demo-1")
    paths.make_folders()
    paths.spec.write_text(f"name: demo\nmodel: {{synthetic: {NAME}}}\n", encoding="utf-8")
    assert read_spec(paths.spec).name == "demo"
    paths.engine.symlink_to(engines[1])
    endpoint.write(paths.endpoint)
    return paths


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory, engines: dict[int, Path]) -> Path:
    folder = shutil.copytree(engines[1] / "tokenizer", tmp_path_factory.mktemp("model") / "tokenizer")
    file = folder / "tokenizer_config.json"
    write_json(file, {**read_json(file), "chat_template": TEMPLATE})  # type: ignore[dict-item]
    return folder


@contextmanager
def started(folder: Path, *options: str | Path) -> Iterator[Gateway]:
    """A gateway of these options, once it is ready."""
    [port] = free_ports(1)
    log = folder / "log"
    with log.open("wb") as said:
        command = [sys.executable, "-m", "trtllm_hpc", "gateway", *map(str, options), "--port", str(port)]
        process = subprocess.Popen(command, stdout=said, stderr=said)
    url = f"http://127.0.0.1:{port}"
    try:
        assert eventually(lambda: curl(url + "/health")[0] == 200), log.read_text()
        yield Gateway(url, process)
    finally:
        process.terminate()
        code = process.wait(60)
    assert code == 0
    assert log.read_text() == ""  # whatever clients did


@pytest.fixture(scope="module")
def gateway(
    run: RunPaths, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    with started(folder, "--run", run.folder, "--tokenizer", tokenizer_folder) as ready:
        yield ready


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=30) as opened:
        yield opened


def curl(url: str, body: str | None = None, *options: str) -> tuple[int, str]:
    """Status and body of what curl is answered."""
    data = [] if body is None else ["-d", body, "-H", "Content-Type: application/json"]
    command = ["curl", "-s", "-w", "\n%{http_code}", *data, *options, url]
    said = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    text, _, status = said.rpartition("\n")
    return int(status), text


def post(gateway: Gateway, path: str, **body: Any) -> tuple[int, Any]:
    status, text = curl(f"{gateway.url}/v1/{path}", json.dumps(body))
    return status, json.loads(text)


def test_it_says_what_it_serves(gateway: Gateway, client: openai.OpenAI) -> None:
    [model] = client.models.list().data
    assert (model.id, model.object, model.model_extra) == (NAME, "model", {"max_model_len": MAX_SEQ_LEN})
    assert client.models.retrieve(NAME) == model
    with pytest.raises(openai.NotFoundError, match=f"'gpt-4' does not exist. This server has '{NAME}'"):
        client.models.retrieve("gpt-4")


def test_a_greedy_completion_is_what_ensemble_answers(
    client: openai.OpenAI, endpoint: Endpoint, tokenizer_folder: Path
) -> None:
    tokenizer = ModelTokenizer(tokenizer_folder)
    prompts = [PROMPT, "Born in north-east France,", "Où est passé", "naïve café 你好", "A"]
    with Client(endpoint, "ensemble") as ensemble:
        expected = [ensemble.generate(each, max_tokens=40, exclude_input=True).text for each in prompts]
    answer = client.completions.create(prompt=prompts, max_tokens=40, **GREEDY)
    assert [each.text for each in answer.choices] == expected
    assert [each.index for each in answer.choices] == list(range(len(prompts)))
    # One of them ends by itself.
    assert sorted(each.finish_reason for each in answer.choices) == ["length"] * 4 + ["stop"]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(len(tokenizer.encode(each)) for each in prompts)
    assert 40 * 4 < answer.usage.completion_tokens < 40 * 5
    ids = [tokenizer.encode(each) for each in prompts]
    assert [
        each.text for each in client.completions.create(prompt=ids, max_tokens=40, **GREEDY).choices
    ] == expected
    for prompt, text in zip(prompts, expected, strict=True):
        chunks = list(client.completions.create(prompt=prompt, max_tokens=40, stream=True, **GREEDY))
        assert "".join(chunk.choices[0].text for chunk in chunks) == text
        assert len(chunks) > 1 and chunks[-1].choices[0].finish_reason in ("length", "stop")


def test_a_chat_is_asked_by_the_models_own_template(client: openai.OpenAI, tokenizer_folder: Path) -> None:
    tokenizer = ModelTokenizer(tokenizer_folder)
    prompt = "<s>user: Who wrote the letter?\nassistant:"
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    assert ids.count(tokenizer.encode("")[0]) == 1
    expected = client.completions.create(prompt=ids, max_tokens=12, **GREEDY)
    answer = client.chat.completions.create(messages=MESSAGES, max_completion_tokens=12, **GREEDY)
    [choice] = answer.choices
    assert choice.message.content == expected.choices[0].text and choice.message.role == "assistant"
    assert answer.usage == expected.usage and answer.usage is not None
    assert answer.usage.prompt_tokens == len(ids)
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": MESSAGES[0]["content"]}]}]
    again = client.chat.completions.create(messages=parts, max_tokens=12, **GREEDY)
    assert again.choices[0].message.content == choice.message.content
    chunks = list(
        client.chat.completions.create(
            messages=MESSAGES, max_tokens=12, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
    )
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert deltas[0].role == "assistant" and {each.role for each in deltas[1:]} == {None}
    assert "".join(each.content or "" for each in deltas) == choice.message.content
    assert (chunks[-1].choices, chunks[-1].usage) == ([], answer.usage)
    assert len({chunk.id for chunk in chunks}) == 1
    # Without a limit an answer may fill what the model was built for.
    whole = client.chat.completions.create(messages=MESSAGES, extra_body={"ignore_eos": True}, **GREEDY)
    assert whole.usage is not None and whole.usage.total_tokens == MAX_SEQ_LEN
    assert whole.choices[0].finish_reason == "length"


def test_answers_are_drawn_unless_asked_otherwise(client: openai.OpenAI) -> None:
    def texts(**options: Any) -> list[str]:
        asked = {"model": NAME, "prompt": PROMPT, "max_tokens": 8, "n": 3, **options}
        return [each.text for each in client.completions.create(**asked).choices]

    seeded = texts(seed=7)
    assert texts(seed=7) == seeded and len(set(seeded)) == 3
    assert texts(seed=-3) == texts(seed=-3) != seeded and texts() != texts()
    assert len(set(texts(temperature=0))) == len(set(texts(extra_body={"top_k": 1}))) == 1
    streamed = ["", "", ""]
    for chunk in client.completions.create(model=NAME, prompt=PROMPT, max_tokens=8, n=3, seed=7, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == seeded
    with pytest.raises(openai.BadRequestError, match="which the reference backend does not have"):
        texts(temperature=0, presence_penalty=2.0)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_ends_before_the_text_to_stop_at(client: openai.OpenAI, stream: bool) -> None:
    def ask(**options: Any) -> tuple[str, str | None, int]:
        asked = {"prompt": PROMPT, "max_tokens": 60, **GREEDY, **options}
        if not stream:
            answer = client.completions.create(**asked)
            return answer.choices[0].text, answer.choices[0].finish_reason, answer.usage.completion_tokens
        *chunks, last = client.completions.create(
            stream=True, stream_options={"include_usage": True}, **asked
        )
        text = "".join(chunk.choices[0].text for chunk in chunks)
        return text, chunks[-1].choices[0].finish_reason, last.usage.completion_tokens

    whole, reason, count = ask()
    assert (reason, count) == ("length", 60)
    # Letters from the middle of tokens, which no token begins with.
    for stop in (whole[21:24], whole[40:48], [whole[30:33], "never there"]):
        first = stop if isinstance(stop, str) else stop[0]
        text, reason, count = ask(stop=stop)
        assert (text, reason) == (whole[: whole.index(first)], "stop")
        assert count < 60
    assert ask(stop=["never there"])[:2] == (whole, "length")


def test_an_answer_ends_at_the_end_token(client: openai.OpenAI) -> None:
    def ask(**options: Any) -> tuple[int, str]:
        asked = {"model": NAME, "prompt": PROMPT, "max_tokens": 9, "temperature": 4.0, **options}
        answer = client.completions.create(**asked)
        return answer.usage.completion_tokens, answer.choices[0].finish_reason

    # A seed that draws it: one in some sixty.
    seed = next(seed for seed in range(2000) if (found := ask(seed=seed))[1] == "stop" and found[0] < 8)
    assert ask(seed=seed, extra_body={"ignore_eos": True}) == (9, "length")
    assert ask(seed=seed, extra_body={"min_tokens": 9})[0] == 9


def test_what_the_server_cannot_answer_is_refused(gateway: Gateway) -> None:
    status, answer = post(gateway, "completions", model=NAME, prompt="A", best_of=2)
    assert (status, answer["error"]["param"]) == (400, "best_of")
    status, answer = post(gateway, "completions", model=NAME, prompt=[100_000])
    assert status == 400 and "this engine's vocabulary" in answer["error"]["message"]
    status, answer = post(gateway, "completions", model="gpt-4", prompt="A")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_ends_with_its_client(gateway: Gateway, alone: World, stream: bool) -> None:
    """Of eight clients: a single request would be over before the gateway has looked."""
    wait_idle(alone)
    body = {"prompt": PROMPT, "n": 4, "max_tokens": LONG - 20, "ignore_eos": True, "stream": stream, **GREEDY}
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: {len(data)}\r\n\r\n"
    before = steps(alone)
    host, port = gateway.url.removeprefix("http://").split(":")
    with ExitStack() as clients:
        for _ in range(MAX_BATCH_SIZE):
            left = clients.enter_context(socket.create_connection((host, int(port))))
            left.sendall(head.encode() + data)
        assert eventually(lambda: steps(alone) > before)
    wait_idle(alone)
    assert steps(alone) - before < 4 * (LONG - 20) / 2


def test_a_server_that_does_not_stream_gives_its_text_in_one_piece(
    client: openai.OpenAI, pair: World, tokenizer_folder: Path, tmp_path: Path
) -> None:
    expected = client.completions.create(prompt=PROMPT, max_tokens=20, **GREEDY).choices[0].text
    url = f"grpc://127.0.0.1:{pair.grpc_port}"
    with (
        started(tmp_path, "--url", url, "--tokenizer", tokenizer_folder, "--name", NAME) as gateway,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as other,
    ):
        options: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 20, "n": 2, **GREEDY}
        assert [each.text for each in other.completions.create(**options).choices] == [expected] * 2
        chunks = list(other.completions.create(stream=True, **options))
        texts = [chunk.choices[0].text for chunk in chunks if chunk.choices[0].text]
        assert sum(map(len, texts)) == 2 * len(expected) and len(texts) <= 4
        stopped = other.completions.create(stop=expected[9:12], **options).choices[0]
        assert (stopped.text, stopped.finish_reason) == (expected[: expected.index(expected[9:12])], "stop")


def test_it_waits_for_its_server_and_says_so(tmp_path: Path, tokenizer_folder: Path) -> None:
    [triton] = free_ports(1)
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    options = ["--url", f"grpc://127.0.0.1:{triton}", "--tokenizer", tokenizer_folder, "--name", "other"]
    command = [sys.executable, "-m", "trtllm_hpc", "gateway", *map(str, options)]
    process = subprocess.Popen([*command, "--fd", str(listening.fileno())], pass_fds=[listening.fileno()])
    try:
        # The socket listened before the gateway did: the first connection waits for it.
        status, text = curl(f"{url}/v1/models")
        assert status == 200 and json.loads(text)["data"][0]["id"] == "other"
        assert curl(f"{url}/health")[0] == 503
        status, text = curl(f"{url}/v1/completions", json.dumps({"model": "other", "prompt": "A"}))
        assert status == 503 and "cannot be reached" in json.loads(text)["error"]["message"]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        listening.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "needs --url, --tokenizer and --name"),
        (["--run", "{run}"], "Name where to listen"),
    ],
)
def test_a_wrong_command_line_is_told(run: RunPaths, options: list[str], message: str) -> None:
    words = [each.format(run=run.folder) for each in options]
    command = [sys.executable, "-m", "trtllm_hpc", "gateway", *words]
    found = subprocess.run(command, capture_output=True, text=True, timeout=30, env=dict(os.environ))
    assert found.returncode != 0 and message in found.stderr and "Traceback" not in found.stderr
    assert run.spec.exists()
