"""One request to a text model over gRPC: its responses as they come, and its early end."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from trtllm_hpc.client.connection import grpc_client, grpc_error, infer_inputs
from trtllm_hpc.client.served_model import CORE_MODEL, LENGTH_OUTPUT, TEXT_OUTPUT, ServedModel
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.runtime.records import Endpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STOP_TIMEOUT_S = 5.0
"""From a stop request to the last response."""

_TICK_S = 0.02


@dataclass(frozen=True)
class Piece:
    """One response: a part of an answer, or the whole."""

    texts: tuple[str, ...]
    """One, or one for each beam."""
    sequence: int
    """Which of the answers to one prompt (``num_return_sequences``)."""
    tokens: int | None
    """Output tokens so far, if the model counts them."""
    outputs: dict[str, NDArray[Any]]
    """All other outputs."""


class Call:
    """A request that has been sent; iterate over it for its responses.

    A call that is left before its last response is cancelled on the server.

    Args:
        client: an open client of Triton over gRPC, for this call alone.
        inputs: tensors by input.
        request_id: by which the server knows it.
        stop_after_s: when to end it early; ``None``: never.
        interrupted: ends it early, once set.
    """

    def __init__(
        self,
        client: Any,
        endpoint: Endpoint,
        model: ServedModel,
        inputs: dict[str, NDArray[Any]],
        *,
        request_id: str,
        timeout_s: float,
        stop_after_s: float | None = None,
        interrupted: threading.Event | None = None,
    ) -> None:
        self._client = client
        self._endpoint = endpoint
        self._model = model
        self._inputs = inputs
        self._request_id = request_id
        self._timeout_s = timeout_s
        self._stop_after_s = stop_after_s
        self._interrupted = interrupted or threading.Event()
        self.is_stopped = False
        """Whether it was ended early."""

    def __iter__(self) -> Generator[Piece]:
        from tritonclient.utils import InferenceServerException

        arrived: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
        self._is_answered = False
        try:
            self._send(arrived)
            yield from self._pieces(arrived)
        except Empty:
            raise RequestFailed(
                f"Model {self._model.name!r} at {self._endpoint.grpc} did not answer within "
                f"{self._timeout_s:g} s."
            ) from None
        except InferenceServerException as error:
            raise RequestFailed(grpc_error(error, self._endpoint, self._model.name)) from error
        except (GeneratorExit, KeyboardInterrupt):
            # Triton does not tell the models of an ensemble that its client has gone.
            self._stop()
            raise
        finally:
            # Triton 2.51 loses a call that is cancelled just as it ends, and cannot stop for 30 s then.
            self._client.stop_stream(cancel_requests=not self._is_answered)

    def _send(self, arrived: SimpleQueue[tuple[Any, Any]]) -> None:
        self._client.start_stream(
            lambda result, error: arrived.put((result, error)), stream_timeout=self._timeout_s
        )
        # The last response may be empty; Triton only sends it if asked, and it alone marks the end.
        self._client.async_stream_infer(
            self._model.name,
            infer_inputs(self._inputs),
            request_id=self._request_id,
            enable_empty_final_response=True,
        )

    def _pieces(self, arrived: SimpleQueue[tuple[Any, Any]]) -> Generator[Piece]:
        """Yield the responses to the last one; raises ``Empty`` if they do not come in time."""
        started = time.monotonic()
        deadline = started + self._timeout_s
        stop_at = math.inf if self._stop_after_s is None else started + self._stop_after_s
        while not self._is_answered:
            now = time.monotonic()
            if not self.is_stopped and (self._interrupted.is_set() or now >= stop_at):
                self.is_stopped = True
                if not self._stop():
                    return
                deadline = time.monotonic() + _STOP_TIMEOUT_S
            try:
                result, error = arrived.get(timeout=max(0.0, min(_TICK_S, deadline - now)))
            except Empty:
                if time.monotonic() < deadline:
                    continue
                if self.is_stopped:
                    return
                raise
            if error is not None:
                self._is_answered = True
                raise error
            self._is_answered = result.get_response().parameters["triton_final_response"].bool_param
            if (piece := _piece(result)) is not None:
                yield piece

    def _stop(self) -> bool:
        """Have the server end the request; returns whether a last response is still to come."""
        if not self._model.ensemble:
            return False  # the cancelled call does it
        # As upstream's own client does it (inflight_batcher_llm_client.py, --stop-after-ms).
        zero, one = np.zeros((1, 1), np.int32), np.ones((1, 1), np.bool_)
        inputs = {"input_ids": zero, "input_lengths": zero, "request_output_len": zero, "stop": one}
        model = ServedModel(CORE_MODEL, {}, batched=True, decoupled=True)
        with suppress(RequestFailed), grpc_client(self._endpoint) as client:
            call = Call(
                client,
                self._endpoint,
                model,
                inputs,
                request_id=self._request_id,
                timeout_s=_STOP_TIMEOUT_S,
            )
            for _ in call:
                pass
        return True


def _piece(result: Any) -> Piece | None:
    """Return what a response says; ``None`` if it is empty, and only ends the answer."""
    text = result.as_numpy(TEXT_OUTPUT)
    names = [output.name for output in result.get_response().outputs]
    if text is None or not text.size:
        return None
    length, sequence = result.as_numpy(LENGTH_OUTPUT), result.as_numpy("sequence_index")
    return Piece(
        texts=_texts(text.reshape(-1)),
        sequence=int(sequence.reshape(-1)[0]) if sequence is not None and sequence.size else 0,
        tokens=int(length.reshape(-1)[0]) if length is not None and length.size else None,
        outputs={name: result.as_numpy(name) for name in names if name != TEXT_OUTPUT},
    )


def _texts(values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(
        value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
        for value in values
    )
