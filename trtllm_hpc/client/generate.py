"""One request to a served text model, over gRPC or HTTP."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from trtllm_hpc.client.call import Call, Piece
from trtllm_hpc.client.connection import grpc_client
from trtllm_hpc.client.http import call_json
from trtllm_hpc.client.inputs import arrays, check_numbers, request_inputs
from trtllm_hpc.client.options import Values
from trtllm_hpc.client.served_model import LENGTH_OUTPUT, TEXT_OUTPUT, ServedModel, describe
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.runtime.records import Endpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray

TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Request:
    """What to ask."""

    model: ServedModel
    prompt: str
    options: Values = field(default_factory=dict)
    """By the names of :mod:`trtllm_hpc.client.options`."""
    logits: Sequence[str] = ()
    """``context_logits`` and ``generation_logits``, over gRPC only."""
    stream: bool = False
    """Whether to have the text as it is generated, over gRPC only."""
    stop_after_s: float | None = None
    """When to end the answer early, over gRPC only; ``None``: never."""
    timeout_s: float = TIMEOUT_S
    """For the whole answer."""


@dataclass(frozen=True)
class Answer:
    """The model's answer, and how long it took."""

    protocol: str
    """``grpc`` or ``http``."""
    text: str
    """The first one, if there are several."""
    latency_s: float
    """From the call to the whole answer, connection included."""
    output_tokens: int | None = None
    """As counted by the server; ``None`` if it does not report them."""
    texts: tuple[str, ...] = ()
    """All of them, of beams or of ``return_sequences``."""
    first_text_s: float | None = None
    """From the call to the first text; ``None`` if the answer came as a whole."""
    is_stopped: bool = False
    """Whether it was ended early."""
    log_probs: tuple[float, ...] | None = None
    """Of each token, if asked for."""
    responses: int = 1
    """How many the server sent; in a stream usually one for each token."""
    logits: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """The requested ones, by output: ``context_logits`` of shape [1, prompt, vocabulary],
    ``generation_logits`` of shape [1, beams, answer, vocabulary]."""

    def as_json(self) -> dict[str, Any]:
        """Return the answer as plain JSON types, without what was not asked for; of logits the shapes."""
        record = {name: value for name, value in vars(self).items() if name != "logits"}
        if self.first_text_s is None:
            del record["responses"]
        if len(self.texts) < 2:
            del record["texts"]
        for name in ("first_text_s", "log_probs"):
            if record[name] is None:
                del record[name]
        if not self.is_stopped:
            del record["is_stopped"]
        shapes = {name: list(array.shape) for name, array in self.logits.items()}
        return {**record, "logits": shapes} if shapes else record


def ask_grpc(
    endpoint: Endpoint,
    request: Request,
    on_text: Callable[[str], object] | None = None,
    interrupted: threading.Event | None = None,
) -> Answer:
    """Send a request to Triton's gRPC endpoint.

    It uses the streaming call, which decoupled models need and all others take.

    Args:
        on_text: called with each part of the text as it comes.
        interrupted: ends the answer early, once set.

    Raises:
        RequestFailed: with the server's error message.
    """
    model = request.model
    pieces: list[Piece] = []
    first_s: float | None = None
    started = time.monotonic()
    with _sent(endpoint, request, interrupted) as call, closing(iter(call)) as responses:
        for piece in responses:
            if request.stream and first_s is None:
                first_s = time.monotonic() - started
            if on_text is not None and (text := _new_text(model, piece, pieces)):
                on_text(text)
            pieces.append(piece)
    latency_s = time.monotonic() - started
    if not pieces and not call.is_stopped:
        raise RequestFailed(f"Model {model.name!r} answered over gRPC without a {TEXT_OUTPUT!r} output.")
    texts = _texts(pieces, accumulates=model.accumulates and request.stream)
    counts = [piece.tokens for piece in pieces if piece.tokens is not None]
    return Answer(
        "grpc",
        texts[0] if texts else "",
        latency_s,
        counts[-1] if counts else None,
        texts,
        first_s,
        call.is_stopped,
        _log_probs(pieces) if request.options.get("log_probs") else None,
        len(pieces),
        {} if call.is_stopped else _logits(pieces, request.logits, model.name),
    )


def streaming(endpoint: Endpoint, request: Request) -> Generator[str]:
    """Yield the parts of the text as they come; closing it ends the answer on the server.

    Raises:
        RequestFailed: with the server's error message.
    """
    pieces: list[Piece] = []
    with _sent(endpoint, request) as call, closing(iter(call)) as responses:
        for piece in responses:
            if text := _new_text(request.model, piece, pieces):
                yield text
            pieces.append(piece)


Result = TypeVar("Result")


def answers(
    ask: Callable[[Request, threading.Event], Result], requests: Sequence[Request], concurrency: int
) -> Iterator[Result]:
    """Ask in threads and yield the results in order; Ctrl-C ends what is being answered, and yields that.

    Args:
        ask: asks one request, and ends early once the event is set.
        concurrency: how many are asked at once.
    """
    interrupted = threading.Event()
    threads = ThreadPoolExecutor(concurrency)
    try:
        waiting = deque(threads.submit(ask, request, interrupted) for request in requests)
        while waiting:
            first = waiting.popleft()
            try:
                result = first.result()
            except KeyboardInterrupt:
                interrupted.set()
                yield first.result()
                yield from (each.result() for each in waiting if not each.cancel())
                raise
            yield result
    finally:
        interrupted.set()
        threads.shutdown(cancel_futures=True)


@contextmanager
def _sent(endpoint: Endpoint, request: Request, interrupted: threading.Event | None = None) -> Iterator[Call]:
    """Yield the call of a request; raises RequestFailed if it cannot be sent as it is."""
    inputs = request_inputs(
        request.model, request.prompt, request.options, stream=request.stream, wants=request.logits
    )
    tensors = arrays(request.model, inputs)
    with grpc_client(endpoint) as client:
        yield Call(
            client,
            endpoint,
            request.model,
            tensors,
            request_id=uuid.uuid4().hex,
            timeout_s=request.timeout_s,
            stop_after_s=request.stop_after_s,
            interrupted=interrupted,
        )


def _new_text(model: ServedModel, piece: Piece, before: Sequence[Piece]) -> str:
    """Return what a piece adds to the first text."""
    if piece.sequence != 0:
        return ""
    known = before[-1].texts[0] if model.accumulates and before else ""
    return piece.texts[0].removeprefix(known)


def ask_http(endpoint: Endpoint, request: Request) -> Answer:
    """Send a request to Triton's HTTP ``generate`` extension, and wait for the whole answer.

    Raises:
        RequestFailed: with the server's error message.
    """
    model = request.model
    body = request_inputs(model, request.prompt, request.options)
    check_numbers(model, body)
    started = time.monotonic()
    reply = call_json(endpoint, f"v2/models/{quote(model.name, safe='')}/generate", request.timeout_s, body)
    latency_s = time.monotonic() - started
    texts = reply.get(TEXT_OUTPUT) if isinstance(reply, dict) else None
    if isinstance(texts, str):
        texts = [texts]
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise RequestFailed(f"Model {model.name!r} answered over HTTP without a {TEXT_OUTPUT!r} output.")
    length = reply.get(LENGTH_OUTPUT)
    return Answer("http", texts[0], latency_s, length if isinstance(length, int) else None, tuple(texts))


def generate_grpc(
    endpoint: Endpoint, prompt: str, max_tokens: int, timeout_s: float, model: str = "ensemble"
) -> Answer:
    """Ask for the whole answer to one prompt over gRPC; raises RequestFailed."""
    served = describe(endpoint, model, timeout_s)
    return ask_grpc(endpoint, Request(served, prompt, {"max_tokens": max_tokens}, timeout_s=timeout_s))


def generate_http(
    endpoint: Endpoint, prompt: str, max_tokens: int, timeout_s: float, model: str = "ensemble"
) -> Answer:
    """Ask for the whole answer to one prompt over HTTP; raises RequestFailed."""
    served = describe(endpoint, model, timeout_s)
    return ask_http(endpoint, Request(served, prompt, {"max_tokens": max_tokens}, timeout_s=timeout_s))


def _texts(pieces: Sequence[Piece], *, accumulates: bool) -> tuple[str, ...]:
    """Return the whole texts: of all beams, or of all sequences."""
    found: dict[tuple[int, int], str] = {}
    for piece in pieces:
        for beam, text in enumerate(piece.texts):
            key = (piece.sequence, beam)
            found[key] = text if accumulates else found.get(key, "") + text
    return tuple(found[key] for key in sorted(found))


def _log_probs(pieces: Sequence[Piece]) -> tuple[float, ...]:
    """Return those of the last response: each has all so far."""
    for piece in reversed(pieces):
        if (values := piece.outputs.get("output_log_probs")) is not None and values.size:
            return tuple(float(value) for value in values.reshape(-1, values.shape[-1])[0])
    return ()


def _logits(pieces: Sequence[Piece], names: Sequence[str], model: str) -> dict[str, NDArray[Any]]:
    """Return the last array of each output; the answer comes in one response unless it is streamed."""
    found = {}
    for name in names:
        values = [array for piece in pieces if (array := piece.outputs.get(name)) is not None]
        if not values:
            raise RequestFailed(f"Model {model!r} answered over gRPC without {name}.")
        found[name] = values[-1]
    return found
