"""Measure the contenders in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.reference.children import Child, Task, child
from benchmarks.reference.lines import ENGINE, FEATURES, TRITON, Line
from benchmarks.reference.processes import machine_cpu_seconds
from benchmarks.reference.results import Results, Sample
from benchmarks.reference.workload import Answer, BenchmarkFailed, Outcome, Run, Setup

COMPARED = {False: "generate", True: ENGINE + FEATURES}
"""The line whose answers the others' are compared with, without and with all features."""


class Measurement:
    """All contenders of one run. One that fails is left out from then on; its reason is kept."""

    def __init__(self, results: Results, requests_per_slot: int, say: Callable[[str], None]) -> None:
        self._results = results
        self._requests_per_slot = requests_per_slot
        self._say = say
        self._children: dict[Task, Child] = {}
        self._answers: dict[str, list[Answer]] = {}
        """By line, what each answered at the present concurrency while it warmed up."""

    def start(self, stack: ExitStack, setup: Setup) -> None:
        """Start all contenders, which end with ``stack``, and wait until they are ready."""
        for task in dict.fromkeys(line.task for line in self._results.lines):
            self._say(f"starting {task.name}")
            self._children[task] = stack.enter_context(child(task, setup))
            if task.name == TRITON:  # its start is bounded, so nobody else takes the cores meanwhile
                self._wait_ready(task)
        for task in list(self._children):
            if task.name != TRITON:
                self._wait_ready(task)

    def _wait_ready(self, task: Task) -> None:
        with self._leaving_out(task):
            self._children[task].wait_ready()

    def warm_up(self, concurrency: int) -> None:
        """A round that is not counted: it compiles, records graphs and allocates memory."""
        self._say(f"concurrency {concurrency}: warming up")
        self._answers = {}
        for line in self._lines():
            if line.task not in self._children:  # another line of its process has just failed
                continue
            with self._leaving_out(line.task):
                outcome = self._children[line.task].measure(self._run(line, concurrency))
                self._answers[line.name] = outcome.answers

    def measure(self, concurrency: int, round_: int) -> None:
        """One round: each line once, starting with a different one each round."""
        lines = self._lines()
        first = round_ % len(lines) if lines else 0
        for line in (*lines[first:], *lines[:first]):
            if line.task not in self._children:
                continue
            with self._leaving_out(line.task):
                sample = self._sample(line, concurrency)
                self._results.samples.append(sample)
                self._say(
                    f"concurrency {concurrency}, round {round_ + 1}: {line.name} {sample.rate:.1f} tokens/s"
                )

    def ask_memory(self) -> None:
        """Record the peak memory of the contenders that are left."""
        for task, contender in list(self._children.items()):
            with self._leaving_out(task):
                self._results.memory[task.name] = contender.memory()

    def _lines(self) -> list[Line]:
        return [line for line in self._results.lines if line.task in self._children]

    @contextmanager
    def _leaving_out(self, task: Task) -> Iterator[None]:
        try:
            yield
        except BenchmarkFailed as error:
            self._say(f"{task.name} failed: {error}")
            self._results.failures[task.name] = str(error).splitlines()[0]
            self._children.pop(task).end()

    def _run(self, line: Line, concurrency: int) -> Run:
        return Run(concurrency, concurrency * self._requests_per_slot, line.features)

    def _sample(self, line: Line, concurrency: int) -> Sample:
        others = [other for task, other in self._children.items() if task != line.task]
        contender = self._children[line.task]
        started, before = time.perf_counter(), _cpu(contender, others)
        outcome = contender.measure(self._run(line, concurrency))
        elapsed, after = time.perf_counter() - started, _cpu(contender, others)
        own, idle, machine = (end - begin for begin, end in zip(before, after, strict=True))
        return Sample(
            line=line.name,
            concurrency=concurrency,
            tokens=outcome.tokens,
            seconds=outcome.seconds,
            sender_cpu=outcome.cpu_seconds / outcome.seconds,
            own_cpu=own / elapsed,
            idle_cpu=idle / elapsed,
            strange_cpu=(machine - own - idle) / elapsed,
            same_answers=self._same(outcome, self._answers.get(COMPARED[line.features])),
        )

    def _same(self, outcome: Outcome, others: list[Answer] | None) -> float | None:
        if others is None:
            return None
        pairs = zip(outcome.answers, others, strict=True)
        return sum(answer == other for answer, other in pairs) / len(others)


def _cpu(contender: Child, others: list[Child]) -> tuple[float, float, float]:
    """CPU seconds so far of one contender, of the others, and of the whole machine."""
    return contender.cpu_seconds(), sum(other.cpu_seconds() for other in others), machine_cpu_seconds()
