"""Rank 0's duties: record that the server is ready, and check that it keeps answering.

Readiness comes from the server's own HTTP endpoint, never from log text.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.blame import rank_name
from trtllm_hpc.runtime.ending import Observed
from trtllm_hpc.runtime.heartbeat import SILENT, Troubles, watch_ranks
from trtllm_hpc.runtime.process import start_ticks
from trtllm_hpc.runtime.proxy import SOCKETS_VARIABLE
from trtllm_hpc.runtime.questions import Asked, Question, QuestionRefused
from trtllm_hpc.runtime.records import JsonRecord, rank_records, try_event
from trtllm_hpc.runtime.server_spec import RankOptions
from trtllm_hpc.runtime.servers import ServerHttp, endpoint_of
from trtllm_hpc.runtime.stop import SUPERVISOR, SUPERVISOR_VARIABLE

INTERVAL_S = 5.0
"""Seconds between two looks. A model that answered a client's request in between gets no probe."""
FAILURES = 3
"""Refused probes in a row that count as a failure; the second and third follow after a second."""
_RETRY_S = 1.0
BLIND_FACTOR = 10
"""Factor on the limit for a server whose metrics lack the engine's steps: it may be busy with other
answers."""

_TEXTS = re.compile(r'^nv_inference_request_success\{[^}]*model="postprocessing"[^}]*\} (\S+)$', re.MULTILINE)
_STEPS = re.compile(
    r'^nv_trt_llm_general_metrics\{[^}]*general_type="iteration_counter"[^}]*\} (\S+)$', re.MULTILINE
)

_SUPERVISOR_SILENT = "the supervisor of the run gives no sign of life: it may be stopped (SIGSTOP)"


class Probe:
    """Sends test requests to the server's models, without the proxy, in a thread that ``begin`` starts.

    Triton reports itself ready even if a model's process is dead or the ranks wait for each other for ever.
    So every few seconds in which no other request was answered, the probe asks each model that takes text for
    one token, as a user does. The metrics show whether the engine still computes.

    A server that does not compute may take ``limit_s`` to answer, and ``first_limit_s`` before its first
    answer, because it may still be compiling.
    """

    def __init__(self, server: ServerHttp, limit_s: float, first_limit_s: float) -> None:
        self._server = server
        self._limit_s, self._first_limit_s = limit_s, max(limit_s, first_limit_s)
        self.fault: str | None = None
        """Why the server no longer answers requests, in a sentence."""
        self._is_proven = False
        """Whether the server has ever answered a request."""
        self._is_blind = True
        """Whether the metrics lack the engine's steps."""
        self._answered: str | None = None
        self._stop = threading.Event()

    def begin(self, models: Sequence[str]) -> None:
        """Watch the models of a ready server that take text."""
        threading.Thread(target=self._run, args=(models,), name="probe", daemon=True).start()

    def end(self) -> None:
        """Stop asking."""
        self._stop.set()

    def _run(self, models: Sequence[str]) -> None:
        watched = self._server.questions(models)
        while watched and not self._stop.wait(INTERVAL_S):
            for question in watched:
                fault = self._look(question)
                if fault is not None:
                    self.fault = fault
                    return

    def _look(self, question: Question) -> str | None:
        """Probe a model unless clients got answers; return a sentence if the model no longer answers."""
        if self._others_were_answered():
            self._is_proven = True
            return None
        refusal = ""
        for attempt in range(FAILURES):
            if attempt and self._stop.wait(_RETRY_S):
                return None
            try:
                fault = self._ask(question)
            except QuestionRefused as error:
                refusal = str(error)
                is_busy = "queue" in refusal.lower() or "maximum" in refusal.lower()
                if not self._is_proven or is_busy or self._others_were_answered():
                    return None  # the model may need other inputs, or refuses only this request
                continue
            except OSError:
                return None  # the server is ending, which the rank's supervisor notices
            self._is_proven = self._is_proven or fault is None
            self._others_were_answered()  # so that the next look does not count this answer as a client's
            return fault
        return f"model {question.model} answers every request with an error ({refusal.rstrip('.')})"

    def _ask(self, question: Question) -> str | None:
        """Ask for one token; wait while the engine computes; return a sentence once it stands still."""
        asked = Asked(self._server.connection, question)
        limit_s = self._limit_s if self._is_proven else self._first_limit_s
        state, since = self._progress(), time.monotonic()
        alone_since: float | None = None
        while not self._stop.is_set():
            if asked.wait(INTERVAL_S):
                asked.check()
                return None
            now = self._progress()
            if now != state:
                state, since = now, time.monotonic()
            if alone_since is None and not self._server.others_ask():
                alone_since = time.monotonic()
            silent_s = time.monotonic() - since
            if silent_s >= (BLIND_FACTOR * limit_s if self._is_blind else limit_s) or (
                # Without other clients' requests ahead of it, the probe itself should have been answered.
                alone_since is not None and min(silent_s, time.monotonic() - alone_since) >= limit_s
            ):
                silence = f"model {question.model} has answered nothing for {silent_s:.0f} s"
                return silence if self._is_blind else f"{silence}, and computes nothing"
        return None

    def _others_were_answered(self) -> bool:
        """Return whether any answer was turned into text since the last look."""
        before, self._answered = self._answered, self._progress()[1]
        return None not in (before, self._answered) and before != self._answered

    def _progress(self) -> tuple[str | None, str | None]:
        """Return the number of steps that the engine has computed, and of answers that became text.

        Triton's own request count is useless here: it counts a decoupled model's request when it hands the
        request over, not when it answers it.
        """
        try:
            page = self._server.metrics()
        except (OSError, http.client.HTTPException, QuestionRefused):
            return None, None
        steps, texts = _STEPS.search(page), _TEXTS.search(page)
        self._is_blind = steps is None
        return steps and steps[1], texts and texts[1]


@dataclass(frozen=True)
class ReadyRecord(JsonRecord):
    """Record that an instance is ready."""

    models: list[str]
    """Names of the ready models."""
    started_at: float
    """Start of rank 0's server, in seconds since the epoch."""
    endpoint: dict[str, Any] = field(default_factory=dict)
    """Without a proxy: the server's address, as fields of :class:`~trtllm_hpc.runtime.records.Endpoint`."""


class Leader:
    """Records for the run's supervisor that the server is ready, then watches it; call ``tick`` often."""

    def __init__(self, paths: RunPaths, options: RankOptions) -> None:
        own = paths.rank_heartbeat(options.step, options.rank)
        self._supervisor = watch_ranks(paths, SUPERVISOR, range(1), options.hang_seconds, own)
        self._paths, self._options = paths, options
        self._troubles = Troubles(paths, "serve")
        self._ready_record = paths.ready_record(options.step)
        self._server = endpoint_of(options)
        self._started, self._started_at = time.monotonic(), time.time()
        self._is_ready = False
        self._probe: Probe | None = None
        if options.hang_seconds is not None:
            self._probe = Probe(self._server, options.hang_seconds, options.ready_timeout_seconds)

    def tick(self, seen: Observed) -> Observed:
        """Record when the server becomes ready; return ``seen`` with what rank 0 alone can observe."""
        if (why := self.supervisor_fault(seen.ranks.stopped)) is not None:
            return replace(seen, supervisor=why)
        if self._is_ready:
            return replace(seen, hang=None if self._probe is None else self._probe.fault)
        names, limit_s = self._server.ready_models(), self._options.ready_timeout_seconds
        if names is not None:
            self._is_ready = True
            endpoint: dict[str, Any] = {}
            if SOCKETS_VARIABLE not in os.environ:
                where = {"host": socket.gethostname(), "address": os.environ["TRTLLM_HPC_ADDRESS"]}
                endpoint = {**where, **self._server.endpoint()}
            ReadyRecord(names, self._started_at, endpoint).write(self._ready_record)
            print(f"ready: {', '.join(names)}", flush=True)
            if self._probe is not None:
                self._probe.begin(names)
        elif time.monotonic() - self._started > limit_s:
            return replace(seen, not_ready=f"{limit_s:.0f} s ({self._server.not_ready()})")
        return seen

    def withdraw(self) -> None:
        """Remove the record that the server is ready: from now on it may refuse requests."""
        if self._probe is not None:
            self._probe.end()
        with suppress(OSError):  # the server must stop even on a full disk
            self._ready_record.unlink(missing_ok=True)

    def supervisor_fault(self, stopped: Mapping[int, str]) -> str | None:
        """Record stopped ranks and a silent supervisor; return a sentence once the supervisor is lost."""
        seen, step = self._supervisor.look(), self._options.step
        records = rank_records(self._paths, step) if stopped else []
        names = {rank: rank_name(records, step, rank) for rank in stopped}
        faults = {f"{step}/{rank}": f"{names[rank]}: {why}" for rank, why in stopped.items()}
        # A supervisor with a stopped child is a suspect, too, but is alive.
        if SILENT in seen.suspects.get(0, ""):
            faults[SUPERVISOR] = _SUPERVISOR_SILENT
        self._troubles.note(faults)
        return _SUPERVISOR_SILENT if seen.silent else None

    def give_up_supervisor(self) -> None:
        """Record the end of the run, and kill the supervisor, so that the batch script goes on."""
        try_event(self._paths, "serve", "failed", reason=_SUPERVISOR_SILENT)
        pid, _, ticks = os.environ.get(SUPERVISOR_VARIABLE, "").partition(" ")
        if pid and str(start_ticks(int(pid))) == ticks:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)
