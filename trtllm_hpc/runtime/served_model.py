"""What a server with OpenAI's protocol needs beyond its options, depending on image and model."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from trtllm_hpc.paths import RunPaths, write_text

VOCABULARY, VOCABULARY_VARIABLE = "o200k_base.tiktoken", "TIKTOKEN_ENCODINGS_BASE"
"""The file without which gpt-oss cannot chat, and the variable that names its folder. If it is not set,
``openai_harmony`` downloads the file at the first chat (``tensorrt_llm/serve/harmony_adapter.py``)."""
VOCABULARY_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""What ``openai_harmony`` 0.0.8 takes."""
AUTH_KEY = "internal_request_auth_key"
"""By this key of the servers' files and of the front's, the servers know the front (TensorRT-LLM 16002)."""
_FILE = "--extra_llm_api_options="
Chat = Literal["none", "template", "harmony"]


def chat_of(model: str, tokenizer: str | None = None) -> Chat:
    """Return how the model in a folder chats, with the tokenizer of another folder if one is given."""
    texts: dict[str, str] = {}
    for folder in map(Path, filter(None, (model, tokenizer))):
        for name in ("config.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json"):
            with suppress(OSError, ValueError):
                texts[name] = (folder / name).read_text(encoding="utf-8")
    if '"gpt_oss"' in texts.get("config.json", "") and os.environ.get("DISABLE_HARMONY_ADAPTER") != "1":
        return "harmony"
    has_own = '"chat_template"' in texts.get("tokenizer_config.json", "")
    return "template" if has_own or any(name.startswith("chat") for name in texts) else "none"


def vocabulary_variables(model: str, tokenizer: str | None, folder: Path) -> Mapping[str, str]:
    """Make gpt-oss's vocabulary of its ``tokenizer.json``, and return the variable that names the folder."""
    if VOCABULARY_VARIABLE in os.environ or chat_of(model, tokenizer) != "harmony":
        return {}
    # A byte is written as itself if it can be printed, and the others as the letters from 256 on (GPT-2).
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in printed}
    letters |= {chr(256 + nth): byte for nth, byte in enumerate(sorted({*range(256)} - {*printed}))}
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        words = json.loads((Path(model) / "tokenizer.json").read_bytes())["model"]["vocab"]
        tokens = {rank: bytes(map(letters.__getitem__, word)) for word, rank in words.items()}
        text = b"".join(b"%s %d\n" % (base64.b64encode(tokens[rank]), rank) for rank in sorted(tokens))
        if hashlib.sha256(text).hexdigest() == VOCABULARY_SHA256:
            (folder / VOCABULARY).write_bytes(text)
            return {VOCABULARY_VARIABLE: str(folder)}
    print(
        f"{VOCABULARY} could not be made of the model's tokenizer.json: chats need a download, or "
        f"{VOCABULARY_VARIABLE} in the profile's environment",
        flush=True,
    )
    return {}


def with_auth_key(arguments: Sequence[str], paths: RunPaths, folder: Path) -> list[str]:
    """Return the arguments with a file that has the servers' key too, if run and image have such a key."""
    spec = importlib.util.find_spec("tensorrt_llm") if paths.servers_key.exists() else None  # no import
    source = Path(*((spec and spec.submodule_search_locations) or ("/nowhere",)), "llmapi/disagg_utils.py")
    if not source.is_file() or AUTH_KEY not in source.read_text(encoding="utf-8"):
        return list(arguments)
    named = next(word for word in arguments if word.startswith(_FILE))
    key = paths.servers_key.read_text(encoding="utf-8").strip()
    configuration = json.loads(Path(named.removeprefix(_FILE)).read_text(encoding="utf-8"))  # JSON is YAML
    write_text(folder / "llm_api.yaml", json.dumps({**configuration, AUTH_KEY: key}))
    return [f"{_FILE}{folder / 'llm_api.yaml'}" if word == named else word for word in arguments]
