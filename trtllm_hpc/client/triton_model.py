"""One model of a Triton server, asked over gRPC or HTTP.

A model that takes token ids is asked a text by way of ``preprocessing`` and
``postprocessing``, as upstream's ``end_to_end_test.py`` does it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trtllm_hpc.client.lora import is_unknown_adapter
from trtllm_hpc.client.model import Ending, Model, until_ended
from trtllm_hpc.client.options import BY_NAME
from trtllm_hpc.client.over_grpc import GrpcServer
from trtllm_hpc.client.over_http import HttpServer
from trtllm_hpc.client.request import Answer, Request
from trtllm_hpc.errors import InvalidRequest, RequestFailed
from trtllm_hpc.wire.response import Response, WrongResponse
from trtllm_hpc.wire.served_model import (
    FROM_PREPROCESSING,
    STREAM_INPUTS,
    TASK_ID_INPUT,
    TO_PREPROCESSING,
    WEIGHTS_INPUT,
    ServedModel,
)
from trtllm_hpc.wire.triton_request import (
    Tensors,
    generate_body,
    generate_url,
    ids_tensors,
    tensors,
    texts_tensor,
)
from trtllm_hpc.wire.triton_response import Outputs, generate_outputs, to_response

PREPROCESSING, POSTPROCESSING = "preprocessing", "postprocessing"

_TEXT_KINDS = ("texts", "numbers")
"""Kinds of options that ``tensorrt_llm`` has as tensors of token ids."""


@dataclass(frozen=True)
class Tokenizer:
    """The served models that turn texts into token ids and back."""

    preprocessing: ServedModel
    postprocessing: ServedModel


class TritonModel(Model):
    """A served model over gRPC or HTTP.

    A model that takes ids is asked texts by ``tokenizer``; ``None`` if it is not served.
    """

    def __init__(
        self,
        server: GrpcServer | HttpServer,
        model: ServedModel,
        tokenizer: Tokenizer | None,
        *,
        can_stream: bool,
    ) -> None:
        super().__init__(model, can_stream=can_stream)
        self.server = server
        self.protocol = "grpc" if isinstance(server, GrpcServer) else "http"
        self.can_tokenize = tokenizer is not None
        self._tokenizer = tokenizer
        self._sent_adapters: set[int] = set()

    async def close(self) -> None:
        """End the connection."""
        await self.server.close()

    async def stop(self, request_id: str) -> None:
        """End a request on the server that another client has sent."""
        if isinstance(self.server, GrpcServer):
            await self.server.stop(self.model, request_id)

    async def responses(self, request: Request, ending: Ending | None) -> AsyncGenerator[Response]:
        """Yield each response; the weights of an adapter are sent if the server has not got them yet."""
        attempts, adapter = self._attempts(request), request.adapter
        for attempt in attempts:
            try:
                async with aclosing(self._outputs(attempt, ending)) as received:
                    async for outputs in received:
                        yield to_response(
                            outputs,
                            takes_text=self.model.takes_text,
                            prompts=len(request.prompts),
                            logits=request.logits,
                        )
                break
            except WrongResponse as error:
                raise RequestFailed(f"Model {self.model.name!r} answered with {error}.") from None
            except RequestFailed as error:
                # It was evicted, or another server has taken the request.
                if attempt is attempts[-1] or not is_unknown_adapter(str(error)):
                    raise
        if adapter is not None:
            self._sent_adapters.add(adapter.task_id)

    def _attempts(self, request: Request) -> list[Request]:
        """Return the request as it is sent first, and as it is sent if the server lacks its adapter."""
        adapter, inputs = request.adapter, self.model.inputs
        if adapter is None:
            return [request]
        has_number = TASK_ID_INPUT in inputs  # before 0.9 they had no number
        if not has_number and WEIGHTS_INPUT not in inputs:
            message = f"Model {self.model.name!r} has no inputs for LoRA adapters."
            raise InvalidRequest(message, hint="leave out --lora-dir")
        named = {**request.inputs, **({TASK_ID_INPUT: adapter.task_id} if has_number else {})}
        weights = {name: batch[0] for name, batch in adapter.inputs.items()}
        whole = replace(request, inputs={**named, **weights})
        is_known = has_number and adapter.task_id in self._sent_adapters
        return [replace(request, inputs=named), whole] if is_known else [whole]

    async def _outputs(self, request: Request, ending: Ending | None) -> AsyncGenerator[Outputs]:
        if isinstance(self.server, GrpcServer):
            sent = await self._tensors(self.server, request)
            async with aclosing(self.server.outputs(self.model, sent, request, ending)) as received:
                async for outputs in received:
                    yield outputs
            return
        # "generate" takes one response only.
        stream = request.stream or request.options.get("return_sequences", 1) > 1
        url = generate_url(self.server.endpoint, self.model.name, stream=stream)
        events = self.server.events(url, self._body(request), request, stream=stream)
        async with aclosing(until_ended(events, ending)) as bounded:
            async for event in bounded:
                try:
                    outputs = generate_outputs(event.data)
                except WrongResponse as error:
                    raise RequestFailed(f"{url} answered with {error}.") from None
                if "error" in outputs:
                    raise RequestFailed(f"{url} failed: {outputs['error'].item()}")
                yield outputs

    def _body(self, request: Request) -> bytes:
        """Return what ``generate`` is sent, whose JSON has no shapes: one prompt, and lists at most.

        Raises InvalidRequest if JSON cannot hold the request, or a number does not fit: Triton would cut it.
        """
        model, leave_out = self.model, "leave out --protocol http"
        if len(request.prompts) != 1:
            raise InvalidRequest("A batch goes over gRPC only.", hint=leave_out)
        if request.logits:
            raise InvalidRequest("Logits come over gRPC only.", hint=leave_out)
        if model.ensemble and request.stop_after_s is not None:
            message = f"Over HTTP, Triton cannot end an answer of {model.name!r} early."
            raise InvalidRequest(message, hint=leave_out)
        [prompt] = request.prompts
        if isinstance(prompt, str) and not model.takes_text:
            raise InvalidRequest(
                f"Model {model.name!r} takes token ids; over gRPC the client makes them of a text.",
                hint=f"{leave_out}, or send ids: --token-ids 1,2,3",
            )
        values = _request_values(model, request)
        body = {**model.prompt_values(prompt), **values}
        for name, value in body.items():
            if isinstance(value, np.ndarray):
                raise InvalidRequest(f"The array for {name!r} goes over gRPC only.", hint=leave_out)
        tensors(model, body)
        return generate_body(body)

    async def _tensors(self, server: GrpcServer, request: Request) -> Tensors:
        model, count = self.model, len(request.prompts)
        if model.takes_text:
            always = tensors(model, {**model.prompt_values(""), **_request_values(model, request)}, count)
            return always | {"text_input": texts_tensor(model, [str(prompt) for prompt in request.prompts])}
        ids = [prompt for prompt in request.prompts if not isinstance(prompt, str)]
        if len(ids) == count:
            return ids_tensors(model, ids) | tensors(model, _request_values(model, request), count)
        options = tensors(model, _request_values(model, request, TO_PREPROCESSING), count)
        outputs = await self._preprocess(server, request)
        prepared = {new: outputs[old] for old, new in FROM_PREPROCESSING.items() if old in outputs}
        return {name: array for name, array in prepared.items() if name in model.inputs} | options

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
        inputs: dict[str, Any] = {"BAD_WORDS_DICT": "", "STOP_WORDS_DICT": ""}
        for option, name in TO_PREPROCESSING.items():
            if (value := request.options.get(option)) is None:
                continue
            if name not in model.inputs:
                message = f"Model {model.name!r} has no input for {BY_NAME[option].flag} ({name})."
                raise InvalidRequest(message)
            inputs[name] = value
        texts = {"QUERY": texts_tensor(model, [str(prompt) for prompt in request.prompts])}
        plain = Request((), timeout_s=request.timeout_s)
        return await server.infer(model, texts | tensors(model, inputs, len(request.prompts)), plain)

    async def count(self, texts: list[str]) -> list[int] | None:
        """Return the tokens of texts, counted by ``preprocessing``; ``None`` if that is not served."""
        if self._tokenizer is None or not isinstance(self.server, GrpcServer):
            return None
        asked = Request((), {"max_tokens": 1}, timeout_s=10.0)
        try:
            outputs = [await self._preprocess(self.server, replace(asked, prompts=(text,))) for text in texts]
            return [int(each["REQUEST_INPUT_LEN"].reshape(-1)[0]) for each in outputs]
        except (RequestFailed, KeyError, IndexError):
            return None

    async def decoded(self, answer: Answer) -> Answer:
        """Have ``postprocessing`` turn an answer's ids into texts."""
        if self.model.takes_text or self._tokenizer is None or not isinstance(self.server, GrpcServer):
            return answer
        begun, texts = time.monotonic(), []
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
        latency_s = answer.latency_s + time.monotonic() - begun
        return replace(answer, text=texts[0] if texts else "", texts=tuple(texts), latency_s=latency_s)


def _request_values(model: ServedModel, request: Request, prepared: Iterable[str] = ()) -> dict[str, Any]:
    """Return the inputs of a request by name, without those of its prompts.

    ``prepared`` are options that ``preprocessing`` has read. Raises InvalidRequest if the model lacks the
    input of an option or output.
    """
    if model.takes_text and not all(isinstance(prompt, str) for prompt in request.prompts):
        raise InvalidRequest(f"Model {model.name!r} takes text, not token ids.", hint="--model tensorrt_llm")
    values: dict[str, Any] = {}
    for name, value in request.options.items():
        option = BY_NAME[name]
        if name in prepared:
            continue
        if not model.takes_text and option.kind in _TEXT_KINDS:
            raise InvalidRequest(
                f"Model {model.name!r} takes {option.flag} as token ids, which 'preprocessing' makes.",
                hint="ask a text instead of token ids, or choose another model with --model",
            )
        if not (found := option.input_of(model)):
            raise InvalidRequest(
                f"Model {model.name!r} has no input for {option.flag} ({option.text or option.core}).",
                hint="leave it out, or choose another model with --model",
            )
        values[found] = value
        if name == "prompt_embedding_table":
            values["prompt_vocab_size"] = len(value)
    for name, value in request.inputs.items():
        if name not in model.inputs:
            raise InvalidRequest(
                f"Model {model.name!r} has no input {name!r}.", hint=f"it has {', '.join(model.inputs)}"
            )
        values[name] = value
    for output in request.logits:
        if f"return_{output}" not in model.inputs:
            message = f"Model {model.name!r} cannot be asked for {output}."
            raise InvalidRequest(message, hint="choose another model with --model")
        values[f"return_{output}"] = True
    if request.stream:
        values |= {name: True for name in STREAM_INPUTS if name in model.inputs}
    return values
