"""What rank 0 adds to the command line of ``trtllm-serve``: gpt-oss's vocabulary, the servers' key."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path

import pytest
import yaml

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.servers import openai
from trtllm_hpc.runtime.servers.openai import chat_of, vocabulary_variables, with_auth_key

GPT_OSS = {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"]}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIKTOKEN_ENCODINGS_BASE", "DISABLE_HARMONY_ADAPTER"):
        monkeypatch.delenv(name, raising=False)


def model(folder: Path, **files: object) -> str:
    """The folder of a model that has these JSON files."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return str(folder)


def test_a_model_chats_by_its_template_and_gpt_oss_in_its_own_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = model(tmp_path / "base", config={"model_type": "llama"}, tokenizer_config={"eos_token": "</s>"})
    assert chat_of(base) == "none" and chat_of("/nowhere") == "none"
    instruct = model(tmp_path / "instruct", config={}, tokenizer_config={"chat_template": "{{ messages }}"})
    assert chat_of(instruct) == "template"
    assert chat_of(base, instruct) == "template"
    (tmp_path / "base" / "chat_template.jinja").write_text("{{ messages }}")
    assert chat_of(base) == "template"
    oss = model(tmp_path / "oss", config=GPT_OSS)
    assert chat_of(oss) == "harmony"
    monkeypatch.setenv("DISABLE_HARMONY_ADAPTER", "1")
    assert chat_of(oss) == "none"


def byte_letters() -> dict[int, str]:
    """The letter of each byte in GPT-2's vocabularies, as ``bytes_to_unicode`` of transformers has them."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters, extra = {}, 0
    for byte in range(256):
        if byte in printed:
            letters[byte] = chr(byte)
        else:
            letters[byte], extra = chr(256 + extra), extra + 1
    return letters


def test_the_vocabulary_is_made_of_the_checkpoints_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [*(bytes([byte]) for byte in range(255, -1, -1)), b" the", "Straße".encode(), b"\n\n"]
    letters = byte_letters()
    words = {"".join(letters[byte] for byte in token): rank for rank, token in enumerate(tokens)}
    backwards = dict(reversed(words.items()))
    folder = model(tmp_path / "oss", config=GPT_OSS, tokenizer={"model": {"vocab": backwards}})
    expected = "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))
    # The real one is the file of 199,998 tokens whose hash is in the module.
    monkeypatch.setattr(
        openai, "VOCABULARY_SHA256", hashlib.sha256(expected.encode()).hexdigest(), raising=True
    )
    assert vocabulary_variables(folder, None, tmp_path) == {"TIKTOKEN_ENCODINGS_BASE": str(tmp_path)}
    assert (tmp_path / "o200k_base.tiktoken").read_text() == expected


@pytest.mark.parametrize(
    "tokenizer", [None, {}, {"model": {"vocab": {"a": 0}}}, {"model": {"vocab": ["a"]}}, []]
)
def test_without_the_vocabulary_in_the_checkpoint_the_server_downloads_it(
    tmp_path: Path, tokenizer: object, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {} if tokenizer is None else {"tokenizer": tokenizer}
    assert vocabulary_variables(model(tmp_path / "oss", config=GPT_OSS, **files), None, tmp_path) == {}
    assert "chats need a download" in capsys.readouterr().out


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of an image's TensorRT-LLM by which it is told whether it knows the key."""
    library = tmp_path / "image" / "tensorrt_llm"
    (library / "llmapi").mkdir(parents=True)
    (library / "__init__.py").write_text("raise RuntimeError('importing it takes a minute')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "image"))
    monkeypatch.delitem(sys.modules, "tensorrt_llm", raising=False)
    return library / "llmapi" / "disagg_utils.py"


def test_the_servers_get_the_key_in_a_file_of_their_own(image: Path, tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")
    run.make_folders()
    run.llm_api("context").write_text('{"cache_transceiver_config": {"backend": "UCX"}}')
    words = ["/m", f"--extra_llm_api_options={run.llm_api('context')}", "--host=127.0.0.1"]
    image.write_text("internal_request_auth_key: str | None = None\n")
    assert with_auth_key(words, run, tmp_path) == words, "a run that is not disaggregated has no key"
    run.servers_key.write_text("-a secret: 'of the servers'\n")
    found = with_auth_key(words, run, tmp_path)
    assert [found[0], found[2]] == [words[0], words[2]] and "secret" not in str(found)
    file = Path(found[1].partition("=")[2])
    assert file.stat().st_mode & 0o777 == 0o600
    assert yaml.safe_load(file.read_text()) == {
        "cache_transceiver_config": {"backend": "UCX"},
        "internal_request_auth_key": "-a secret: 'of the servers'",
    }
    image.write_text("")
    assert with_auth_key(words, run, tmp_path) == words, "an older image would refuse the key"
    image.unlink()
    assert with_auth_key(words, run, tmp_path) == words
