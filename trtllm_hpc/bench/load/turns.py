"""Conversations under load: each turn waits for the previous answer and for its think time."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from trtllm_hpc.bench.load.messages import LoadReply, Target, answer_text, encode_request
from trtllm_hpc.bench.load.timing import Clock, KernelTimer
from trtllm_hpc.bench.workload.request import WorkloadRequest


class Conversation(NamedTuple):
    """Requests that are sent one after another."""

    first_index: int
    """Index of the first turn in the workload; the other turns follow."""
    turns: Sequence[WorkloadRequest]


class Turns:
    """Sends all turns of conversations except the first ones."""

    timer: KernelTimer
    end_s = float("inf")
    """Time on the clock after which no turn is sent."""

    def __init__(
        self,
        conversations: Sequence[Conversation],
        target: Target,
        clock: Clock,
        send: Callable[[LoadReply, bytes], None],
    ) -> None:
        self._conversations, self._target, self._clock, self._send = conversations, target, clock, send
        self._open: dict[str, tuple[Conversation, float, list[Mapping[str, str]]]] = {}
        """Open conversations by session: begin and earlier messages."""
        self._begun = Counter[str | None]()
        self._waiting: list[tuple[float, int, LoadReply, bytes]] = []

    def begin(self, position: int, due_s: float) -> LoadReply:
        """Begin the conversation at this position, and return the empty reply of its first turn."""
        conversation = self._conversations[position]
        first = conversation.turns[0]
        self._begun[first.session] += 1
        again = self._begun[first.session]
        session = f"{first.session}-{again}" if again > 1 else f"{first.session}"
        self._open[session] = conversation, due_s, [*(first.said or ())]
        return LoadReply(conversation.first_index, due_s, self._clock.now(), -1.0, session=session)

    def goes_on(self, reply: LoadReply) -> bool:
        """Prepare the next turn; return False if there is none, or if the last turn has no answer."""
        if reply.session is None:
            return False
        (first_index, turns), begun_s, said = state = self._open.pop(reply.session)
        at = reply.index + 1 - first_index
        if not reply.ok or at == len(turns):
            return False
        turn, recorded_s = turns[at], begun_s + (turns[at].due_s or 0.0) - (turns[0].due_s or 0.0)
        due_s = max(reply.ended_s + (turn.think_s or 0.0), recorded_s)
        if due_s >= self.end_s:
            return False
        self._open[reply.session] = state
        said.append({"role": "user", "content": turns[at - 1].prompt or ""})
        # Some models repeat the prompt in the answer, which would duplicate earlier messages.
        before = "\n".join(message["content"] for message in said)
        answer = answer_text(reply, self._target).removeprefix(before)
        said.append({"role": "assistant", "content": answer})
        waiting = LoadReply(reply.index + 1, due_s, -1.0, -1.0, session=reply.session)
        payload = encode_request(replace(turn, said=said), self._target, str(waiting.index))
        heapq.heappush(self._waiting, (due_s, waiting.index, waiting, payload))
        self.on_timer()
        return True

    def on_timer(self) -> None:
        """Send the turns that are due, and set the timer for the next one."""
        while self._waiting and self._waiting[0][0] <= (now_s := self._clock.now()):
            _, _, reply, payload = heapq.heappop(self._waiting)
            reply.sent_s = now_s
            self._send(reply, payload)
        if self._waiting:
            self.timer.set(self._clock.zero + self._waiting[0][0])
