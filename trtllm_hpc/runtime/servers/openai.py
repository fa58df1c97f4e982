"""A server with OpenAI's protocol: ``trtllm-serve``, or any other server that the job file names."""

from __future__ import annotations

import base64
import hashlib
import http.client
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from trtllm_hpc.paths import RunPaths, write_text
from trtllm_hpc.runtime.proxy import SOCKETS_VARIABLE
from trtllm_hpc.runtime.questions import PROMPT, Asked, Question, QuestionRefused, quickly
from trtllm_hpc.runtime.server_spec import RankOptions, StartCommand

VOCABULARY, VOCABULARY_VARIABLE = "o200k_base.tiktoken", "TIKTOKEN_ENCODINGS_BASE"
"""Vocabulary file that gpt-oss needs to chat, and the variable that names its folder. Without the variable,
``openai_harmony`` downloads the file at the first chat (``tensorrt_llm/serve/harmony_adapter.py``)."""
VOCABULARY_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""Hash of the file that ``openai_harmony`` 0.0.8 accepts."""
AUTH_KEY = "internal_request_auth_key"
"""Key in the files of the servers and the front, by which the servers recognise the front (TensorRT-LLM
16002)."""
_FILE = "--extra_llm_api_options="
Chat = Literal["none", "template", "harmony"]

_ESTABLISHED = "01"
"""``TCP_ESTABLISHED`` in /proc/net/tcp."""


def start_command(paths: RunPaths, options: RankOptions, scratch: Path) -> StartCommand:
    """Return a rank's command line; see :func:`trtllm_hpc.runtime.servers.start_command`."""
    spec, environment = options.spec, dict[str, str]()
    address, _, port = _place(options).rpartition(":")
    program, *words = options.words(
        address=address,
        port=port,
        node_rank=options.rank // options.ranks_per_node,
        leader_address=os.environ.get("MASTER_ADDR", "127.0.0.1"),
        leader_port=os.environ.get("MASTER_PORT", "0"),
    )
    if options.rank == 0 and spec.model is not None:
        environment |= vocabulary_variables(spec.model, spec.tokenizer, scratch)
        words = with_auth_key(words, paths, scratch)
    hint = "set container.image in the cluster profile to an image that has it"
    return [options.server_program(program, hint), *words], environment


def _place(options: RankOptions) -> str:
    """Return the ``address:port`` at which the server listens; such a server has no Unix sockets."""
    if SOCKETS_VARIABLE not in os.environ:
        return f"{os.environ['TRTLLM_HPC_ADDRESS']}:{os.environ['TRTLLM_HPC_HTTP_PORT']}"
    if options.rank != 0:
        return "127.0.0.1:0"
    # The port on the leader's node to which the proxy forwards requests.
    port = Path(f"{os.environ[SOCKETS_VARIABLE]}.port").read_text(encoding="ascii").strip()
    return f"127.0.0.1:{port}"


# Files that such a server needs beyond its options, depending on image and model -------------


def chat_of(model: str, tokenizer: str | None = None) -> Chat:
    """Return how the model in a folder chats; ``tokenizer`` is the tokenizer's folder, if another."""
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
    """Write gpt-oss's vocabulary, made from ``tokenizer.json``; return the variable with the folder."""
    if VOCABULARY_VARIABLE in os.environ or chat_of(model, tokenizer) != "harmony":
        return {}
    # GPT-2's encoding: a printable byte is its own character; all other bytes are the characters from 256 on.
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
        f"{VOCABULARY} could not be made from the model's tokenizer.json: chats need a download, or "
        f"{VOCABULARY_VARIABLE} in the profile's environment",
        flush=True,
    )
    return {}


def with_auth_key(arguments: Sequence[str], paths: RunPaths, folder: Path) -> list[str]:
    """Return the arguments with the servers' key in their file, if the run has a key that the image knows."""
    spec = importlib.util.find_spec("tensorrt_llm") if paths.servers_key.exists() else None  # no import
    source = Path(*((spec and spec.submodule_search_locations) or ("/nowhere",)), "llmapi/disagg_utils.py")
    if not source.is_file() or AUTH_KEY not in source.read_text(encoding="utf-8"):
        return list(arguments)
    named = next(word for word in arguments if word.startswith(_FILE))
    key = paths.servers_key.read_text(encoding="utf-8").strip()
    configuration = json.loads(Path(named.removeprefix(_FILE)).read_text(encoding="utf-8"))  # JSON is YAML
    write_text(folder / "llm_api.yaml", json.dumps({**configuration, AUTH_KEY: key}))
    return [f"{_FILE}{folder / 'llm_api.yaml'}" if word == named else word for word in arguments]


# Its endpoint --------------------------------------------------------------------------------


class OpenAIHttp:
    """The endpoint of a server with OpenAI's protocol.

    The health path is not enough: it answers as soon as the server listens, and still does after a rank has
    died. The server counts as ready once it has generated a token, in a chat if the model has a chat
    template, else in a completion.

    Args:
        place: ``address:port`` of the server.
        models: names of the server's models; empty: ask the server.
        unlisted: name of the model if the server lists none.
        chats: whether to ask for a chat.
        health: path that returns status 200.
        prompt: prompt of the completion, as text or token IDs.
    """

    def __init__(
        self,
        place: str,
        models: Sequence[str] = (),
        *,
        unlisted: str | None = None,
        chats: bool = False,
        health: str = "/health",
        prompt: str | Sequence[int] = PROMPT,
    ) -> None:
        self._place, self._known_models = place, list(models)
        self._unlisted = [] if unlisted is None else [unlisted]
        self._chats, self._health, self._prompt = chats, health, prompt
        self._asked: Asked | None = None
        self._refusal: str | None = None

    @classmethod
    def of(cls, options: RankOptions) -> OpenAIHttp:
        """Return the endpoint of the server that rank 0 starts."""
        spec = options.spec
        chats = spec.model is not None and chat_of(spec.model, spec.tokenizer) != "none"
        return cls(_place(options), unlisted=spec.model, chats=chats, health=spec.health)

    def endpoint(self) -> dict[str, Any]:
        """Return the URL of the endpoint in a run without a proxy."""
        ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
        return {**ports, "openai_url": f"http://{self._place}/v1"}

    def ready_models(self) -> list[str] | None:
        """Return the models' names once the server has generated a token; ``None`` before."""
        if quickly(self.connection, "GET", self._health) is None:
            return None
        models = self._known_models
        if not models:
            with suppress(ValueError, KeyError, TypeError):
                listed = json.loads(quickly(self.connection, "GET", "/v1/models") or b"{}")
                models = [str(model["id"]) for model in listed["data"]]
            if not (models := models or self._unlisted):
                return None
        if self._asked is None:
            self._asked = Asked(self.connection, self._question(models))
        if not self._asked.wait(0):
            return None
        asked, self._asked = self._asked, None
        try:
            asked.check()
        except QuestionRefused as error:
            self._refusal = str(error)
            return None
        except OSError:
            return None
        return models

    def not_ready(self) -> str:
        """Return how far the server has come, as a sentence."""
        if self._asked is None and self._refusal is None:
            return f"the server does not answer at {self._place}"
        what = "a chat" if self._chats else "a completion"
        refusal = "" if self._refusal is None else f"; asked for {what}, it said: {self._refusal}"
        return f"{self._health} answers, but no token comes{refusal}"

    def questions(self, models: Sequence[str]) -> list[Question]:
        """Return the question that the ready server has answered."""
        return [self._question(models)]

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a new connection to the endpoint."""
        return http.client.HTTPConnection(self._place, timeout=timeout_s)

    def metrics(self) -> str:
        """Return nothing: reading the statistics would remove them for a benchmark that samples them."""
        return ""

    def others_ask(self) -> bool:
        """Return whether more than one connection is open; the proxy keeps none open without a request."""
        port, count = int(self._place.rpartition(":")[2]), 0
        for table in ("tcp", "tcp6"):  # the kernel's proc_net_tcp.rst
            with suppress(OSError):
                for row in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
                    _, local, _, state, *_ = row.split()
                    count += state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port
        return count > 1

    def _question(self, models: Sequence[str]) -> Question:
        chat = {"messages": [{"role": "user", "content": PROMPT}]}
        asked = chat if self._chats else {"prompt": self._prompt}
        path = "/v1/chat/completions" if self._chats else "/v1/completions"
        return Question(models[0], path, json.dumps({"model": models[0], "max_tokens": 1, **asked}).encode())
