"""One model of a Triton server, asked over gRPC or HTTP.

A model that takes token ids is asked a text by way of ``preprocessing`` and
``postprocessing``, as upstream's ``end_to_end_test.py`` does it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trtllm_hpc.client.early_end import Course, until_ended
from trtllm_hpc.client.inputs import (
    PREPROCESSED,
    Tensors,
    core_inputs,
    prompt_tensors,
    tensors,
    text_inputs,
    texts_tensor,
)
from trtllm_hpc.client.lora import CONFIG_INPUT, TASK_ID_INPUT, WEIGHTS_INPUT, Adapter, is_unknown_adapter
from trtllm_hpc.client.options import BY_NAME
from trtllm_hpc.client.over_grpc import GrpcServer
from trtllm_hpc.client.over_http import HttpServer
from trtllm_hpc.client.reply import OnText, Outputs, Reply
from trtllm_hpc.client.request import Answer, Request
from trtllm_hpc.client.served_model import ServedModel
from trtllm_hpc.errors import InvalidRequest, RequestFailed

PREPROCESSING, POSTPROCESSING = "preprocessing", "postprocessing"

_FROM_PREPROCESSING: Mapping[str, str] = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "BAD_WORDS_IDS": "bad_words_list",
    "STOP_WORDS_IDS": "stop_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
    "OUT_PROMPT_TABLE_EXTRA_IDS": "prompt_table_extra_ids",
}
"""Outputs of ``preprocessing`` and the inputs of ``tensorrt_llm`` (``ensemble/config.pbtxt``, v0.16)."""


@dataclass(frozen=True)
class Tokenizer:
    """The served models that turn texts into token ids and back."""

    preprocessing: ServedModel
    postprocessing: ServedModel


class TritonModel:
    """A served model over one connection, for any number of requests at once.

    A model that takes ids is asked texts by ``tokenizer``; ``None`` if it is not served.
    """

    def __init__(
        self, server: GrpcServer | HttpServer, model: ServedModel, tokenizer: Tokenizer | None
    ) -> None:
        self.model = model
        self.server = server
        self._tokenizer = tokenizer
        self._sent_adapters: set[int] = set()

    @property
    def can_tokenize(self) -> bool:
        """Whether texts can be asked of a model that takes ids."""
        return self._tokenizer is not None

    async def close(self) -> None:
        """End the connection."""
        await self.server.close()

    async def ask(
        self, request: Request, on_text: OnText | None = None, ended: asyncio.Event | None = None
    ) -> tuple[Answer, ...]:
        """Send a request, with the weights of its adapter if the server has not got them yet.

        ``on_text`` is called with each part of the first text as it comes; ``ended`` ends the answers early,
        once set. Raises RequestFailed with the server's error message.
        """
        adapter = request.adapter
        if adapter is None:
            return await self._ask(request, on_text, ended)
        if adapter.task_id in self._sent_adapters:
            try:
                return await self._ask(
                    _with_adapter(self.model, request, adapter, whole=False), on_text, ended
                )
            except RequestFailed as error:
                # It was evicted, or another server has taken the request.
                if not is_unknown_adapter(str(error)):
                    raise
        answers = await self._ask(_with_adapter(self.model, request, adapter, whole=True), on_text, ended)
        self._sent_adapters.add(adapter.task_id)
        return answers

    async def stop(self, request_id: str) -> None:
        """End a request on the server that another client has sent."""
        if isinstance(self.server, GrpcServer):
            await self.server.stop(self.model, request_id)

    async def count(self, texts: list[str]) -> list[int] | None:
        """Return the tokens of texts, counted by ``preprocessing``; ``None`` if that is not served."""
        if self._tokenizer is None or not isinstance(self.server, GrpcServer):
            return None
        asked = Request(tuple(texts), {"max_tokens": 1}, timeout_s=10.0)
        try:
            outputs = [await self._preprocess(self.server, replace(asked, prompts=(text,))) for text in texts]
            return [int(each["REQUEST_INPUT_LEN"].reshape(-1)[0]) for each in outputs]
        except (RequestFailed, KeyError, IndexError):
            return None

    async def replies(self, request: Request) -> AsyncGenerator[Reply]:
        """Yield the reply at each response; leaving it ends the request there. Raises RequestFailed."""
        reply = Reply(self.model, request, self.server.protocol)
        async with aclosing(self._responses(request, None, Course())) as responses:
            async for outputs in responses:
                reply.add(outputs)
                yield reply

    async def _ask(
        self, request: Request, on_text: OnText | None, ended: asyncio.Event | None
    ) -> tuple[Answer, ...]:
        reply, course = Reply(self.model, request, self.server.protocol), Course()
        answers = await reply.answers(self._responses(request, ended, course), course, on_text)
        if self.model.takes_text or self._tokenizer is None:
            return answers
        decoded = [await self._decoded(answer, reply.started) for answer in answers]
        if on_text is not None:
            on_text(decoded[0].text)
        return tuple(decoded)

    async def _responses(
        self, request: Request, ended: asyncio.Event | None, course: Course
    ) -> AsyncGenerator[Outputs]:
        if isinstance(self.server, HttpServer):
            responses = self.server.responses(self.model, self._body(request), request)
            async with aclosing(until_ended(responses, course, request.stop_after_s, ended)) as bounded:
                async for outputs in bounded:
                    yield outputs
            return
        sent = await self._tensors(self.server, request)
        async with self.server.call(self.model, sent, request, ended) as call:
            async with aclosing(call.responses()) as received:
                async for outputs in received:
                    yield outputs
            course.is_stopped = call.is_stopped

    def _body(self, request: Request) -> dict[str, Any]:
        """Return what ``generate`` is sent, whose JSON has no shapes: one prompt, and lists at most.

        Raises InvalidRequest if it cannot be said so, or a number does not fit: Triton would cut it.
        """
        if len(request.prompts) != 1:
            raise InvalidRequest("A batch goes over gRPC only.", hint="leave out --protocol http")
        if request.logits:
            raise InvalidRequest("Logits come over gRPC only.", hint="leave out --protocol http")
        if self.model.ensemble and request.stop_after_s is not None:
            raise InvalidRequest(
                f"Over HTTP, Triton does not tell {self.model.name!r} that an answer is to end early.",
                hint="leave out --protocol http",
            )
        [prompt] = request.prompts
        if isinstance(prompt, str) and self.model.takes_text:
            body = {"text_input": prompt, **text_inputs(self.model, request)}
        elif isinstance(prompt, str):
            raise InvalidRequest(
                f"Model {self.model.name!r} takes token ids; over gRPC the client makes them of a text.",
                hint="leave out --protocol http, or send ids: --token-ids 1,2,3",
            )
        else:
            inputs = core_inputs(self.model, request, prepared=())
            body = {"input_ids": list(prompt), "input_lengths": len(prompt), **inputs}
        for name, value in body.items():
            if isinstance(value, np.ndarray):
                raise InvalidRequest(
                    f"The array for {name!r} goes over gRPC only.", hint="leave out --protocol http"
                )
        tensors(self.model, body, 1)
        return body

    async def _tensors(self, server: GrpcServer, request: Request) -> Tensors:
        count = len(request.prompts)
        if self.model.takes_text:
            inputs = text_inputs(self.model, request)
            texts = {"text_input": texts_tensor(self.model, [str(it) for it in request.prompts])}
            return texts | tensors(self.model, inputs, count)
        if all(not isinstance(prompt, str) for prompt in request.prompts):
            inputs = core_inputs(self.model, request, prepared=())
            ids = prompt_tensors(
                self.model, [prompt for prompt in request.prompts if not isinstance(prompt, str)]
            )
            return ids | tensors(self.model, inputs, count)
        inputs = core_inputs(self.model, request, prepared=PREPROCESSED)
        options = tensors(self.model, inputs, count)
        outputs = await self._preprocess(server, request)
        prepared = {new: outputs[old] for old, new in _FROM_PREPROCESSING.items() if old in outputs}
        return {name: it for name, it in prepared.items() if name in self.model.inputs} | options

    async def _preprocess(self, server: GrpcServer, request: Request) -> Outputs:
        """Have ``preprocessing`` turn texts, and the options that it reads, into token ids."""
        if self._tokenizer is None:
            raise InvalidRequest(
                f"Model {self.model.name!r} takes token ids, and the server has no model {PREPROCESSING!r}"
                " that makes them of a text.",
                hint="send ids: --token-ids 1,2,3",
            )
        if not all(isinstance(prompt, str) for prompt in request.prompts):
            raise InvalidRequest("A batch holds texts or token ids, not both.")
        model = self._tokenizer.preprocessing
        inputs: dict[str, Any] = {}
        for option, name in PREPROCESSED.items():
            value = request.options.get(option)
            if value is not None and name not in model.inputs:
                raise InvalidRequest(
                    f"Model {model.name!r} has no input for {BY_NAME[option].flag} ({name})."
                )
            if value is not None:
                inputs[name] = value
        for name in ("BAD_WORDS_DICT", "STOP_WORDS_DICT"):
            inputs.setdefault(name, "")
        texts = {"QUERY": texts_tensor(model, [str(prompt) for prompt in request.prompts])}
        plain = Request((), timeout_s=request.timeout_s)
        return await server.infer(model, texts | tensors(model, inputs, len(request.prompts)), plain)

    async def _decoded(self, answer: Answer, started: float) -> Answer:
        """Have ``postprocessing`` turn an answer's ids into texts."""
        if self._tokenizer is None or not isinstance(self.server, GrpcServer):
            return answer
        texts = []
        for ids in answer.token_ids:
            sent = {
                "TOKENS_BATCH": np.array([[ids]], dtype=np.int32).reshape(1, 1, -1),
                "SEQUENCE_LENGTH": np.array([[len(ids)]], dtype=np.int32),
            }
            outputs = await self.server.infer(self._tokenizer.postprocessing, sent, Request(()))
            if "OUTPUT" not in outputs or not outputs["OUTPUT"].size:
                raise RequestFailed(f"Model {POSTPROCESSING!r} answered without an 'OUTPUT' output.")
            value = outputs["OUTPUT"].reshape(-1)[0]
            texts.append(value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value))
        return replace(
            answer, text=texts[0] if texts else "", texts=tuple(texts), latency_s=time.monotonic() - started
        )


def _with_adapter(model: ServedModel, request: Request, adapter: Adapter, *, whole: bool) -> Request:
    """Return a request that names its adapter, with ``whole`` its weights, too; raises InvalidRequest."""
    inputs: dict[str, Any] = {}
    if TASK_ID_INPUT in model.inputs:
        inputs = {TASK_ID_INPUT: adapter.task_id}
        if whole:
            inputs |= {WEIGHTS_INPUT: adapter.weights[0], CONFIG_INPUT: adapter.config[0]}
    elif WEIGHTS_INPUT in model.inputs:  # before 0.9 they had no number
        inputs = {WEIGHTS_INPUT: adapter.weights[0], CONFIG_INPUT: adapter.config[0]}
    else:
        raise InvalidRequest(
            f"Model {model.name!r} has no inputs for LoRA adapters.", hint="leave out --lora-dir"
        )
    return replace(request, inputs={**request.inputs, **inputs})
