"""The served model for the routes: its limits, its connection, prompts as token IDs, and tokens as text.

The Jinja template in the model's tokenizer turns a chat into a prompt. Templates are written for
``apply_chat_template`` of transformers (``utils/chat_template_utils.py``), so the environment, its helpers
and its sandbox are the same here.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trtllm_hpc.client.async_client import AsyncClient
from trtllm_hpc.client.connect import Target, parse_url
from trtllm_hpc.client.request import BY_NAME, Request
from trtllm_hpc.client.single_calls import call_grpc
from trtllm_hpc.config.job import Serve
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.gateway.answers import AnswerPart, ApiError
from trtllm_hpc.gateway.bodies import AnyBody, ChatBody, CompletionBody
from trtllm_hpc.gateway.tokenizer import ModelTokenizer, TextStream
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.wire.served_model import CORE_MODEL

_READY_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 3600.0
"""Seconds for a whole answer; a client that has waited long enough goes away before."""
_USUAL_MAX_TOKENS = 1024
"""Default limit of a chat's answer, in tokens, if the engine's ``max_seq_len`` is not known."""


Message = Mapping[str, Any]


class _Generation(Extension):
    """The tag ``{% generation %}``, which marks answers for training; here it only renders its content."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # Not Jinja's own filter, which escapes < and > for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class ChatTemplate:
    """A tokenizer's chat template, read and compiled when first used."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._tokenizer = tokenizer

    def render(self, messages: Sequence[Message], arguments: Mapping[str, Any]) -> str:
        """Return the prompt of a chat, with its special tokens; ``arguments`` are further variables.

        Raises ApiError if the model has no template, or the template refuses the chat.
        """
        none = {"tools": None, "documents": None, "add_generation_prompt": True}
        variables = {**self._tokenizer.special_tokens, **none, **arguments}
        try:
            return self._compiled.render(messages=messages, **variables)
        except ApiError:
            raise
        except TemplateError as error:
            raise ApiError(f"The model's chat template refuses this: {error}", param="messages") from None
        # A template is a program, and can fail with any exception.
        except Exception as error:  # noqa: BLE001
            kind = type(error).__name__
            message = f"The model's chat template failed with this chat ({kind}: {error})."
            raise ApiError(message, param="messages") from None

    @cached_property
    def _compiled(self) -> Template:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        file = self._tokenizer.folder / "chat_template.jinja"
        if file.is_file():
            return environment.from_string(file.read_text(encoding="utf-8"))
        template = self._tokenizer.config.get("chat_template")
        if not isinstance(template, str):
            raise ApiError(
                "This model has no chat template: neither tokenizer_config.json nor chat_template.jinja has "
                "one. Ask /v1/completions, with the whole prompt as text.",
                code="no_chat_template",
            )
        return environment.from_string(template)


@dataclass(frozen=True)
class Facts:
    """Facts about the served model that the gateway needs."""

    name: str
    """Name of the model in requests."""
    tokenizer: Path
    """Folder with ``tokenizer.json``."""
    max_seq_len: int | None = None
    """Largest number of tokens of prompt and answer together; ``None``: not known."""
    add_special_tokens: bool = True
    """Whether prompts of ``/v1/completions`` get the tokenizer's special tokens, as in ``ensemble``."""
    skip_special_tokens: bool = True
    """Whether answers omit special tokens."""
    max_request_mib: int = Serve.model_fields["max_request_mib"].default
    """Largest body of a request in MiB."""


@dataclass(frozen=True)
class TokenPrompt:
    """The token IDs of a prompt, and the largest number of tokens of its answer."""

    ids: Sequence[int]
    max_tokens: int


class ServedByTriton:
    """The model that Triton serves at ``target``; the first request opens the connection."""

    def __init__(self, target: Target, facts: Facts) -> None:
        self.facts = facts
        self._tokenizer = ModelTokenizer(facts.tokenizer)
        self._template = ChatTemplate(self._tokenizer)
        self._target = target
        self._client: AsyncClient | None = None
        self._opening = asyncio.Lock()

    async def close(self) -> None:
        """Close the connection to Triton."""
        if self._client is not None:
            await self._client.__aexit__(None, None, None)

    async def is_ready(self) -> bool:
        """Return whether Triton and its models are ready."""
        endpoint = self._target if isinstance(self._target, Endpoint) else parse_url(self._target)[1]
        asked = "ServerReady", "ServerReadyRequest", _READY_TIMEOUT_S
        try:
            answer = await asyncio.to_thread(call_grpc, endpoint, *asked)
        except RequestFailed:
            return False
        return bool(answer.get("ready"))

    async def client(self) -> AsyncClient:
        """Return the open client.

        Raises RequestFailed if Triton does not answer, and ApiError if the model takes text.
        """
        async with self._opening:
            if self._client is None:
                client = await AsyncClient(self._target, CORE_MODEL).__aenter__()
                if client.model.takes_text:
                    await client.__aexit__(None, None, None)
                    raise ApiError(
                        "The gateway needs a model that takes token IDs, and this server's LLM API takes "
                        "text. The LLM API's trtllm-serve has this protocol itself.",
                        501,
                    )
                self._client = client
        return self._client

    def check_model(self, name: str) -> None:
        """Refuse another model's name. Raises ApiError with the status 404."""
        if name != self.facts.name:
            message = f"The model {name!r} does not exist. This server has {self.facts.name!r}."
            raise ApiError(message, 404, param="model", code="model_not_found")

    def prompts(self, asked: CompletionBody | ChatBody) -> list[TokenPrompt]:
        """Return the prompts of a request as token IDs; long prompts take time, so call this in a thread.

        Raises ApiError if the chat has no template, or a prompt leaves no room for the answer.
        """
        if isinstance(asked, ChatBody):
            chat = self._template.render(asked.messages, asked.chat_template_kwargs)
            # The template has written the special tokens: the tokenizer must not add them a second time.
            limit = asked.max_completion_tokens or asked.max_tokens
            return [self._prompt(chat, "messages", limit, special=False)]
        special = self.facts.add_special_tokens
        return [self._prompt(prompt, "prompt", asked.max_tokens, special=special) for prompt in asked.prompt]

    def _prompt(
        self, prompt: str | list[int], key: str, max_tokens: int | None, *, special: bool
    ) -> TokenPrompt:
        encode = self._tokenizer.encode
        ids = encode(prompt, add_special_tokens=special) if isinstance(prompt, str) else prompt
        if not ids:
            raise ApiError("The prompt has no tokens.", param=key)
        most = self.facts.max_seq_len
        if most is None:
            return TokenPrompt(ids, max_tokens or _USUAL_MAX_TOKENS)
        wanted = max_tokens or 1
        if len(ids) + wanted > most:
            # Clients such as LiteLLM know this error by OpenAI's first words.
            raise ApiError(
                f"This model's maximum context length is {most} tokens, but the prompt has {len(ids)} tokens "
                f"and the answer may have {wanted}, which is more in total.",
                param=key,
                code="context_length_exceeded",
            )
        return TokenPrompt(ids, max_tokens or most - len(ids))

    async def answer(
        self, asked: AnyBody, prompt: TokenPrompt, choice: int, headers: Mapping[str, str]
    ) -> AsyncGenerator[AnswerPart]:
        """Yield the parts of one answer as they arrive; closing the generator ends the answer on the server.

        ``choice`` is its number among the answers to the prompt; ``headers`` go to Triton with the request.
        Raises ApiError if the served model has no input for a key; RequestFailed as ``AsyncClient.generate``.
        """
        client = await self.client()
        ends = set() if asked.ignore_eos else self._tokenizer.end_ids
        # The server ends an answer at its end token; other end tokens of a chat model are words to stop at.
        words = sorted(ends - {self._tokenizer.end_id})
        ends_of_words = np.arange(1, len(words) + 1)
        request = Request(
            prompt.ids,
            self._options(asked, prompt, choice, client),
            inputs={"stop_words_list": np.array([words, ends_of_words], np.int32)} if words else {},
            # Only a stream can be ended where its text ends, within a token.
            stream=(asked.stream or bool(asked.stop)) and client.model.decoupled,
            timeout_s=_ANSWER_TIMEOUT_S,
            request_id=uuid.uuid4().hex,
            headers=headers,
        )
        # Old models repeat the prompt before an answer, unless they stream.
        may_repeat = not (request.stream or "exclude_input" in request.options)
        skips = self.facts.skip_special_tokens
        text = TextStream(self._tokenizer, asked.stop, skip_special_tokens=skips)
        count, last = 0, -1
        async with aclosing(client.collected(request)) as collecting:
            async for progress in collecting:
                if progress.first is None:
                    continue
                ids, length = progress.first.ids, len(prompt.ids)
                begin = length if may_repeat and ids[:length] == list(prompt.ids) else 0
                if not (new := ids[begin + count :]):
                    continue
                count, last = count + len(new), new[-1]
                yield AnswerPart(text.add(new), len(new), "stop" if text.is_stopped else None)
                if text.is_stopped:
                    return
        rest, room = text.end(), prompt.max_tokens
        if self.facts.max_seq_len is not None:
            room = min(room, self.facts.max_seq_len - len(prompt.ids))
        # Some backends send the token that ended the answer, others do not.
        is_full = count >= room and last not in ends and not text.is_stopped
        yield AnswerPart(rest, finish="length" if is_full else "stop")

    def _options(
        self, asked: AnyBody, prompt: TokenPrompt, choice: int, client: AsyncClient
    ) -> dict[str, Any]:
        """Return the options of an answer by the client's names.

        Tokens are sampled unless the request asks for greedy decoding, as in OpenAI's protocol. Triton's
        models are greedy without ``top_k`` and ``top_p``, and without a seed they sample the same tokens
        each time.
        """
        options: dict[str, Any] = {
            "max_tokens": prompt.max_tokens,
            "presence_penalty": asked.presence_penalty,
            "frequency_penalty": asked.frequency_penalty,
            "repetition_penalty": asked.repetition_penalty,
            "min_tokens": asked.min_tokens,
            "end_id": None if asked.ignore_eos else self._tokenizer.end_id,
            "pad_id": self._tokenizer.pad_id,
        }
        if asked.temperature == 0 or asked.top_k == 1:
            options["top_k"] = 1
        else:
            options |= {"temperature": asked.temperature, "top_p": asked.top_p, "min_p": asked.min_p}
            options["top_k"] = max(asked.top_k, 0)
            # The next answer to the prompt has the next seed, as TensorRT-LLM numbers its sequences.
            seed = secrets.randbits(63) if asked.seed is None else asked.seed
            options["seed"] = (seed + choice) % 2**64
        options = {name: value for name, value in options.items() if value is not None}
        for name in options:
            if not BY_NAME[name].input_of(client.model):
                key = BY_NAME[name].openai or name
                raise ApiError(f"The served model has no input for {key}.", param=key)
        if BY_NAME["exclude_input"].input_of(client.model):
            options["exclude_input"] = True
        return options


async def merged(streams: Sequence[AsyncGenerator[AnswerPart]]) -> AsyncGenerator[tuple[int, AnswerPart]]:
    """Yield the parts of several answers as they arrive, each with its answer's index.

    All answers end when the generator is closed or one of the answers fails.
    """
    queue: asyncio.Queue[tuple[int, AnswerPart] | None] = asyncio.Queue()

    async def read(index: int, stream: AsyncGenerator[AnswerPart]) -> None:
        async with aclosing(stream) as parts:
            async for part in parts:
                queue.put_nowait((index, part))

    reading = [asyncio.ensure_future(read(index, stream)) for index, stream in enumerate(streams)]
    for task in reading:
        task.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        for _ in reading:
            while (received := await queue.get()) is not None:
                yield received
            for task in reading:
                if task.done():
                    task.result()
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
