"""Servers with OpenAI's protocol: a real one (``transformers serve``), and one that answers wrongly."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import trtllm_hpc
from tests.bench.openai_server import DONE, Script, event, openai_server
from tests.waiting import eventually
from trtllm_hpc.cli.client import command
from trtllm_hpc.client.connect import Address
from trtllm_hpc.client.single_calls import call_json
from trtllm_hpc.client.sync_client import Client
from trtllm_hpc.errors import ExitCode, InvalidRequest, RequestFailed, ServerUnreachable
from trtllm_hpc.reference import synthetic
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.records import Endpoint

PROMPT = "What is machine learning?"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    synthetic.make_model(seed=0, dtype="float32", max_seq_len=128).save_pretrained(folder)
    synthetic.make_tokenizer(folder / "tokenizer")
    shutil.copytree(folder / "tokenizer", folder, dirs_exist_ok=True)
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    [port] = free_ports(1)
    command = [str(Path(sys.executable).parent / "transformers"), "serve", str(model), "--device", "cpu"]
    with (model / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=log,
            stderr=log,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
    endpoint = Endpoint("", "here", "127.0.0.1", port, port, 0, [], 0.0)

    def is_up() -> bool:
        try:
            return bool(call_json(endpoint, "health", 2) == {"status": "ok"})
        except RequestFailed:
            return False

    try:
        assert eventually(is_up, 180), (model / "log").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@pytest.mark.model
def test_a_real_server_answers_streams_and_counts(url: str, model: Path) -> None:
    for address in (Address(url), Address(f"{url}/v1")):
        with Client(address, str(model)) as client:
            whole = client.generate(PROMPT, max_tokens=8)
            assert (whole.protocol, whole.output_tokens, whole.counted_by) == ("openai", 8, "server")
            assert client.generate(PROMPT, max_tokens=3).output_tokens == 3
            parts = list(client.stream(PROMPT, max_tokens=8))
            assert len(parts) > 1 and "".join(parts) == whole.text
            stopped = client.generate(PROMPT, max_tokens=8, stop_words=[whole.text[2:4]])
            assert stopped.text != whole.text and whole.text.startswith(stopped.text)
            with pytest.raises(InvalidRequest, match="no key for --beam-width"):
                client.generate(PROMPT, beam_width=2)


@pytest.mark.model
def test_a_chat_goes_through_the_models_template(url: str, model: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
    with Client(Address(url), str(model)) as client:
        parts: list[str] = []
        streamed = client.chat(messages, on_text=parts.append, max_tokens=8, temperature=0.0)
        assert len(parts) > 1 and "".join(parts) == streamed.text
        whole = client.chat(messages, max_tokens=8, temperature=0.0)
        # transformers' stream leaves out what is no whole letter at the end.
        assert whole.text.startswith(streamed.text)
        assert (whole.output_tokens, whole.counted_by) == (8, "server")
        # What was said before counts, and the template makes another prompt of it than the words alone.
        other = client.chat(messages[1:], max_tokens=8, temperature=0.0)
        assert len({whole.text, other.text, client.generate(PROMPT, max_tokens=8, temperature=0.0).text}) == 3
        with pytest.raises(InvalidRequest, match="needs at least one message"):
            client.chat([])
    asked = ["--url", url, "--model", str(model), "--max-tokens", "8", "--temperature", "0"]
    said = CliRunner().invoke(command, [*asked, "--chat", "--system", "Be brief.", PROMPT])
    assert said.exit_code == 0 and said.stdout.strip() == streamed.text.strip()


@pytest.mark.model
@pytest.mark.parametrize("protocol", ["openai", "openai-chat"])
def test_a_real_server_is_measured(url: str, model: Path, tmp_path: Path, protocol: str) -> None:
    """It ends its streams without ``[DONE]``, and tells the tokens in its last event."""
    quick = {"requests": 12, "min_requests": 1, "min_window_seconds": 0.0, "max_late_share": 1.0}
    load = {"concurrency": 2, "warmup_requests": 1, "max_tokens": 6}
    settings: dict[str, Any] = {**quick, **load, "model": str(model), "protocol": protocol}
    found = trtllm_hpc.bench_url(url, tmp_path, **settings)
    assert found.valid, found.summary.verdict
    assert found.summary.tokens["output_by"] == found.summary.tokens["input_by"] == ["server"]
    assert {record.output_tokens for record in found.records} == {6}
    assert "ttft_ms.p50" in found.figures


# A server that answers wrongly -------------------------------------------------------------------


def root_of(endpoint: Endpoint) -> str:
    assert endpoint.openai_url is not None
    return endpoint.openai_url.removesuffix("/v1")


ANSWER = b"""{"choices": [
    {"index": 1, "text": "two", "finish_reason": "stop", "logprobs": null},
    {"index": 0, "text": "one", "finish_reason": "stop", "logprobs": {"token_logprobs": [-0.5, -1.5]}}]}"""


def test_options_become_the_protocols_keys(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    script = Script(body=ANSWER)
    with (
        openai_server(script) as endpoint,
        Client(Address(root_of(endpoint), tmp_path / "key")) as client,
    ):
        options: dict[str, Any] = {"max_tokens": 3, "stop_words": ["x"], "top_k": 4, "log_probs": True}
        answer = client.generate("a", return_sequences=2, exclude_input=True, **options)
        assert (answer.texts, answer.log_probs) == (("one", "two"), (-0.5, -1.5))
    assert [key for _, _, key in script.asked] == ["Bearer secret"]
    [body] = script.bodies
    expected = {"prompt": "a", "max_tokens": 3, "stop": ["x"], "top_k": 4, "logprobs": 1, "n": 2}
    assert {name: body[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("status", "body", "kind", "sentence"),
    [
        (401, b'{"error": {"message": "wrong key"}}', RequestFailed, "answered 401.*wrong key"),
        (404, b'{"error": {"message": "no such model"}}', RequestFailed, "no such model"),
        (503, b'{"error": {"message": "no server"}}', ServerUnreachable, "answered 503"),
        (200, b'{"choices": []}', RequestFailed, "without a text"),
        (200, b"{", RequestFailed, "a response that is not JSON"),
        (200, b'{"choices": [{"index": 0, "text": 7}]}', RequestFailed, r"choices\[0\].text"),
        (200, b"[1, 2]", RequestFailed, "does not follow the OpenAI protocol"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_wrong_answer_is_one_sentence(
    status: int, body: bytes, kind: type[RequestFailed], sentence: str, streamed: bool
) -> None:
    if streamed and status == 200:
        body = b"data: " + body + b"\n\n"
        sentence = "."
    refused = pytest.raises(kind, match=sentence)
    with (
        openai_server(Script(body=body, status=status)) as endpoint,
        Client(Address(root_of(endpoint)), retries=0) as client,
        refused,
    ):
        list(client.stream("x")) if streamed else client.generate("x")


def test_a_server_with_several_models_wants_a_name() -> None:
    with openai_server(Script(models=("one", "two"))) as endpoint:
        said = CliRunner().invoke(command, ["--url", root_of(endpoint), PROMPT])
    assert getattr(said.exception, "exit_code", None) == ExitCode.USAGE
    assert "serves 2 models" in str(said.exception) and "one of: one, two" in str(said.exception)


def test_a_stream_may_end_without_done_but_not_without_a_reason() -> None:
    for end in ([DONE], [event("", reason="stop")], []):
        script = Script([event("GR"), event("ÜN"), event(usage=(1, 2)), *end])
        with openai_server(script) as endpoint, Client(Address(root_of(endpoint)), retries=0) as client:
            if end:
                assert list(client.stream("x")) == ["GR", "ÜN"]
            else:
                with pytest.raises(RequestFailed, match="the stream ended early"):
                    list(client.stream("x"))
