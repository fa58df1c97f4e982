"""Passes requests and cancellations from Triton to the engine, and answers and metrics back to Triton.

The thread that receives generated tokens from the engine sends them as tensors. If the thread falls behind,
all tokens that are ready for a request go into one response. Another thread updates the engine's metrics on
Triton's metrics port: names and labels are those of ``custom_metrics_reporter.cc`` in NVIDIA's
tensorrtllm_backend v0.16.0; ``waiting`` and ``fraction`` came with v0.18.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.generation import Generated, GenerationRequest, Load, Outcome, QueueFull, RankEngine
from trtllm_hpc.reference.requests import Array

CHECK_S = 0.1
"""Seconds between two checks for disconnected clients; a check takes Triton 100 µs for each request."""

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Open:
    """A Triton request that is not answered yet."""

    sender: Any
    request_id: str
    wanted: Collection[str]
    """Names of the outputs that the client requested."""
    number: int = 0
    """The request's number in the engine."""
    request: GenerationRequest | None = None
    generated: Generated = field(default_factory=lambda: Generated((), (), False))
    """The newest state of the answer from the engine."""
    sent: int = 0
    """Number of tokens of the answer that were sent to the client."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the sender is used, which must not happen after the last response."""
    is_answered: bool = False


class Delivery:
    """Submits requests to the engine, sends the answers, and checks for disconnected clients.

    ``triton`` is the module ``triton_python_backend_utils``, which exists only inside Triton; ``observe`` is
    called with the lengths of each finished sequence, before its last response is sent.
    """

    def __init__(self, engine: RankEngine, triton: Any, *, observe: Callable[[int, int], object]) -> None:
        self._engine = engine
        self._triton = triton
        self._observe = observe
        self._numbers = itertools.count()
        self._open: dict[int, _Open] = {}
        """Unanswered requests by their number in the engine."""
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="cancellations", daemon=True)
        self._watcher.start()

    def submit(self, request: Any, read: Callable[[Any], GenerationRequest | None]) -> None:
        """Submit a Triton request to the engine, or answer why ``read`` or the engine refuses it.

        If ``read`` returns ``None``, the request stops the requests with the same id.
        """
        sender, wanted = request.get_response_sender(), frozenset(request.requested_output_names())
        opened = _Open(sender, request.request_id(), wanted, next(self._numbers))
        try:
            opened.request = read(request)
            if opened.request is None:
                self._stop(opened)
                return
            self._open[opened.number] = opened
            self._engine.submit(opened.number, opened.request)
        except RequestFailed as error:
            self._fail(opened, error)

    def hear(self, number: int, outcome: Outcome) -> None:
        """Send the tokens that the engine generated; never raises, so that later answers are still sent."""
        opened = self._open.get(number)
        if opened is None:
            return
        try:
            if isinstance(outcome, RequestFailed):
                self._fail(opened, outcome)
            else:
                self._respond(opened, outcome)
        except Exception as error:  # noqa: BLE001 - the client must get an error, whatever Triton raises
            _log.exception("an answer could not be sent")
            with suppress(Exception):
                self._fail(opened, RequestFailed(f"The answer could not be sent: {error}"))

    def close(self) -> None:
        """End the thread; the engine must have stopped."""
        self._closing.set()
        self._watcher.join()

    def _stop(self, stopping: _Open) -> None:
        """Stop the requests with this id; each is answered with the tokens generated so far.

        The stop request itself gets an empty answer, even if no request has that id.
        """
        if not stopping.request_id:
            raise RequestFailed("stop=true needs a request id: the id of the request to be stopped.")
        for opened in list(self._open.values()):
            if opened.request_id == stopping.request_id:
                self._engine.cancel(opened.number)
                self._respond(opened, opened.generated._replace(is_final=True))
        self._send(stopping, self._triton.InferenceResponse([]), is_last=True)

    def _respond(self, opened: _Open, generated: Generated) -> None:
        request = opened.request
        with opened.lock:
            if opened.is_answered or request is None:
                return
            opened.generated = generated
            if not (generated.is_final or request.streaming):
                return
            arrays = tensors(request, opened.sent, generated)
            opened.sent = len(generated.tokens)
            response = self._triton.InferenceResponse(
                [self._triton.Tensor(name, array) for name, array in arrays.items() if name in opened.wanted]
            )
            if generated.is_final:
                self._observe(len(request.prompt), len(generated.tokens))
            self._send(opened, response, is_last=generated.is_final)

    def _fail(self, opened: _Open, error: RequestFailed, *, is_cancelled: bool = False) -> None:
        """End a request in the engine, and answer it with an error."""
        kinds = self._triton.TritonError
        code = kinds.UNAVAILABLE if isinstance(error, QueueFull) else kinds.INVALID_ARG
        code = kinds.CANCELLED if is_cancelled else code
        with opened.lock:
            if opened.is_answered:
                return
            self._engine.cancel(opened.number)
            response = self._triton.InferenceResponse(error=kinds(error.message, code))
            self._send(opened, response, is_last=True)

    def _send(self, opened: _Open, response: Any, *, is_last: bool) -> None:
        flags = self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0
        opened.sender.send(response, flags=flags)
        # Marked only after sending: if the response could not be sent, an error may follow.
        if is_last:
            opened.is_answered = True
            self._open.pop(opened.number, None)

    def _watch(self) -> None:
        while not self._closing.wait(CHECK_S):
            for opened in list(self._open.values()):
                try:
                    with opened.lock:
                        is_left = not opened.is_answered and opened.sender.is_cancelled()
                    if is_left:
                        error = RequestFailed("The request was cancelled.")
                        self._fail(opened, error, is_cancelled=True)
                except Exception:  # noqa: BLE001 - after any error the others must be checked
                    _log.exception("cannot ask Triton whether a client disconnected")


def tensors(request: GenerationRequest, sent: int, generated: Generated) -> dict[str, Array]:
    """Return the output tensors of the next response by name, after ``sent`` tokens of the answer were sent.

    Names, types and shapes are those of ``fillTritonResponse`` in
    ``inflight_batcher_llm/src/model_instance_state.cc`` of NVIDIA's tensorrtllm_backend v0.16.0, and what
    each response of a stream holds follows ``createResponse`` of TensorRT-LLM's ``llmRequest.h``: its own
    tokens, but all log-probabilities so far. ``output_ids`` begins with the prompt unless the request
    excludes it or is streaming.
    """
    new = generated.tokens[sent:]
    tokens = new if request.exclude_input or request.streaming else [*request.prompt, *new]
    arrays: dict[str, Array] = {
        "output_ids": np.array([[tokens]], dtype=np.int32),
        "sequence_length": np.array([[len(tokens)]], dtype=np.int32),
    }
    if request.return_log_probs:
        arrays["output_log_probs"] = np.array([[generated.log_probs]], dtype=np.float32)
        arrays["cum_log_probs"] = np.array([[sum(generated.log_probs)]], dtype=np.float32)
    return arrays


PERIOD_S = 0.1
"""Seconds between two updates of the gauges."""

LABELS = {
    "nv_trt_llm_request_metrics": "request_type",
    "nv_trt_llm_runtime_memory_metrics": "memory_type",
    "nv_trt_llm_kv_cache_block_metrics": "kv_cache_block_type",
    "nv_trt_llm_inflight_batcher_metrics": "inflight_batcher_specific_metric",
    "nv_trt_llm_general_metrics": "general_type",
    "nv_llm_input_token_len": "response_metric_type",
    "nv_llm_output_token_len": "response_metric_type",
}
"""The label that distinguishes the metrics of each family."""


def gauges(load: Load, memory: Mapping[str, int], now: float) -> dict[str, Mapping[str, float]]:
    """Return the gauges' values by family and label.

    ``memory`` is in bytes by kind, and ``now`` in seconds since 1970.
    """
    used, most = load.blocks_used, load.blocks_max
    requests = ("active", "scheduled", "context", "waiting")
    values: list[Mapping[str, float]] = [
        {"max": load.max_requests, **{name: getattr(load, name) for name in requests}},
        memory,
        {
            **{"max": most, "free": most - used, "used": used, "reused": 0},
            **{"tokens_per": load.tokens_per_block, "fraction": used / most if most else 0},
        },
        {
            **{"total_context_tokens": load.context_tokens, "generation_requests": load.generation_requests},
            **{"micro_batch_id": 0, "paused_requests": 0},
        },
        {"timestamp": int(now * 1e6), "iteration_counter": load.iteration},
    ]
    return dict(zip(LABELS, values, strict=False))


def memory_used() -> dict[str, int]:
    """Return the bytes that this process uses: resident host memory, and GPU memory reserved by torch."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    torch = sys.modules.get("torch")
    on_gpu = torch.cuda.memory_reserved() if torch is not None and torch.cuda.is_initialized() else 0
    return {"cpu": pages * os.sysconf("SC_PAGE_SIZE"), "gpu": on_gpu, "pinned": 0}


class LoadReporter:
    """Updates Triton's copy of the engine's metrics in a separate thread.

    Each update is a message to another process, so only changed values are sent. Name and version of the
    model are labels of every metric.
    """

    def __init__(self, engine: RankEngine, triton: Any, *, model: str, version: str) -> None:
        self._engine = engine
        self._triton = triton
        self._labels = {"model": model, "version": version}
        self._closing = threading.Event()
        self._using = threading.Lock()
        self._families: dict[str, Any] = {}
        self._metrics: dict[tuple[str, str], Any] = {}
        self._sent: dict[tuple[str, str], float] = {}
        buckets = [10.0, 50.0, 100.0, 500.0, 1000.0]
        for kind in ("input", "output"):
            self._metric(f"nv_llm_{kind}_token_len", f"total_{kind}_tokens", buckets=buckets)
        self._update()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Start the updates. Triton's stub crashes if this is called while Triton initialises the model."""
        if not self._thread.is_alive():
            self._thread.start()

    def observe(self, prompt: int, answer: int) -> None:
        """Record the lengths of a finished sequence, in tokens."""
        # The stub of Triton 2.51 crashes when two threads use its metrics at the same time.
        with self._using:
            for kind, length in (("input", prompt), ("output", answer)):
                self._metric(f"nv_llm_{kind}_token_len", f"total_{kind}_tokens").observe(length)

    def close(self) -> None:
        """End the thread and delete Triton's metrics: deleting them after the model crashes the stub."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        self._metrics.clear()
        self._families.clear()

    def _run(self) -> None:
        while not self._closing.wait(PERIOD_S):
            try:
                self._update()
            except Exception:  # noqa: BLE001 - after any error serving must go on
                _log.exception("the metrics could not be updated")

    def _update(self) -> None:
        for family, values in gauges(self._engine.load(), memory_used(), time.time()).items():
            for label, value in values.items():
                if self._sent.get((family, label)) == value:
                    continue
                with self._using:
                    self._metric(family, label).set(value)
                self._sent[family, label] = value

    def _metric(self, family: str, label: str, **histogram: Any) -> Any:
        """Return a metric of a family, and create it on first use: a histogram if buckets are given."""
        if (family, label) not in self._metrics:
            kinds = self._triton.MetricFamily
            if family not in self._families:
                kind = kinds.HISTOGRAM if histogram else kinds.GAUGE
                self._families[family] = kinds(name=family, description="As TensorRT-LLM's.", kind=kind)
            labels = {**self._labels, LABELS[family]: label}
            self._metrics[family, label] = self._families[family].Metric(labels=labels, **histogram)
        return self._metrics[family, label]
