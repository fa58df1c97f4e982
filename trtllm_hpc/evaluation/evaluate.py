"""Send the questions of tasks to a served model, store each answer at once, and score the answers."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trtllm_hpc.client.async_client import AsyncClient, gathered
from trtllm_hpc.config.benchmark import Evaluation
from trtllm_hpc.evaluation import tasks
from trtllm_hpc.evaluation.scores import (
    EvaluationSummary,
    Scores,
    TaskScore,
    against_run,
    against_threshold,
    mean_of,
    read_evaluation,
)
from trtllm_hpc.paths import RunPaths, read_json, write_json, write_text

Question = tuple[str, dict[str, Any]]
"""The prompt, or a chat's messages as JSON, with the options of the request."""
CONCURRENCY = 32
"""Number of questions that are outstanding at the same time."""
TIMEOUT_S = 600.0
"""Longest time for an answer, in seconds."""
OnAnswer = Callable[[int, int], object]
"""Called after each answer with the number of answers so far and the number of questions of the task."""


class Answers:
    """The answers to an evaluation's questions, from an earlier attempt's file or from the server."""

    def __init__(self, file: Path, on_answer: OnAnswer) -> None:
        self._file, self._on_answer, self._known = file, on_answer, dict[str, str]()
        self.asked, self.kept, self.model = 0, 0, ""
        file.parent.mkdir(parents=True, exist_ok=True)
        for line in file.read_bytes().splitlines(keepends=True) if file.exists() else []:
            with suppress(ValueError):
                self._known |= json.loads(line)
            if not line.endswith(b"\n"):  # the process that wrote the line was killed
                with file.open("ab") as incomplete:
                    incomplete.write(b"\n")

    async def to(self, questions: Sequence[Question], client: AsyncClient, *, chat: bool) -> list[str]:
        """Return the answers in the order of the questions; raises RequestFailed if an answer is missing."""
        seen, slots, work = Counter[str](), asyncio.Semaphore(CONCURRENCY), []
        before = self.asked + self.kept

        async def answer(key: str, text: str, options: dict[str, Any]) -> str:
            if key in self._known:
                self.kept += 1
                self._on_answer(self.asked + self.kept - before, len(questions))
                return self._known[key]
            async with slots:
                call = client.chat(json.loads(text), **options) if chat else client.generate(text, **options)
                generated = (await call).text
            self.asked += 1
            # Some servers return the stop word at the end of an answer, others remove it.
            ends = [place for word in options["stop_words"] if (place := generated.find(word)) >= 0]
            generated = generated[: min(ends, default=None)]
            with self._file.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps({key: generated})}\n")
            self._on_answer(self.asked + self.kept - before, len(questions))
            return generated

        for question in questions:
            words = json.dumps([chat, *question], sort_keys=True)
            key = hashlib.sha256(words.encode()).hexdigest()[:24]
            seen[key] += 1  # each repetition of a question has its own answer
            work.append(answer(f"{key}-{seen[key]}", *question))
        async with client:
            self.model = client.model.name
            return await gathered(work)


def options_of(own: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's options, merged from the task's ``generation_kwargs`` (``own``) and the settings."""
    until, temperature = own.get("until") or [], asked["temperature"]
    if temperature is None:
        temperature = own.get("temperature", 1.0) if own.get("do_sample") else 0.0
    stop_words = [until] if isinstance(until, str) else list(until)
    tokens = asked["max_tokens"] or own.get("max_gen_toks") or 256
    options = {"max_tokens": tokens, "temperature": float(temperature), "stop_words": stop_words}
    return options | ({"seed": 1234, "top_p": own.get("top_p", 1.0)} if temperature else {})


def evaluate(
    run: RunPaths,
    name: str,
    client: Callable[[], AsyncClient],
    settings: Evaluation,
    on_answer: OnAnswer = lambda done, of: None,
) -> EvaluationSummary:
    """Evaluate a served model, and write ``results/evaluations/NAME.*`` in the run's folder.

    Answers stored by an earlier attempt of the same name are used again.

    Args:
        run: the run's folder.
        name: of the evaluation.
        client: returns a new client that uses the OpenAI protocol.
        settings: tasks, their options, and the gate.
        on_answer: called after each answer.

    Raises:
        ConfigError: a task is unknown, its data are missing, or its metric does not exist.
        RequestFailed: the server is lost or refuses a question. The answers so far are kept.
    """
    answers = Answers(run.evaluation(name, "answers.jsonl"), on_answer)
    task_scores, scores, lines = list[TaskScore](), dict[str, Scores](), list[str]()
    for task, parts in [(task, tasks.load(task, settings)) for task in settings.tasks]:
        asked = tasks.asked_as(task, settings)
        samples = _samples(parts, answers, client(), asked, settings)
        metric, scores[task] = scores_of(samples, asked["metric"])
        lines += _readable(task, metric, samples, chat=asked["protocol"] == "chat")
        score = TaskScore(task, metric, *mean_of(list(scores[task].values())), len(scores[task]), asked)
        if settings.threshold is not None:
            score = against_threshold(score, settings.threshold)
        if settings.not_worse_than is not None and score.passed is not False:
            base = RunPaths(run.folder.parent / settings.not_worse_than)
            base_scores = (read_json(base.evaluation(kind="scores.json")) or {}).get(task, {})
            base_summary = read_evaluation(base.evaluation())
            score = against_run(score, scores[task], base_summary, base_scores, base.run_id, settings.tasks)
        task_scores.append(score)
    write_json(run.evaluation(name, "scores.json"), scores)
    write_text(run.evaluation(name, "samples.jsonl"), "".join(lines))
    summary = EvaluationSummary(answers.model, task_scores, answers.asked, answers.kept, version("lm-eval"))
    summary.write(run.evaluation(name))
    return summary


def _samples(
    parts: Mapping[str, Any], answers: Answers, client: AsyncClient, asked: Mapping[str, Any], own: Evaluation
) -> dict[str, list[dict[str, Any]]]:
    """Send the questions of one task to the server, and return ``lm-eval``'s samples of each part."""
    from lm_eval.api.model import LM
    from lm_eval.evaluator import evaluate as evaluate_with

    chat = asked["protocol"] == "chat"

    class Served(LM):  # type: ignore[misc]  # lm-eval has no types
        """The served model with the interface that ``lm-eval`` expects of a model."""

        tokenizer_name = ""

        def generate_until(self, requests: Any) -> list[str]:
            questions = [(request.args[0], options_of(request.args[1], asked)) for request in requests]
            return asyncio.run(answers.to(questions, client, chat=chat))

        def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
            return json.dumps(chat_history)

        def loglikelihood(self, requests: Any) -> Any:
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

    options = {"limit": own.limit, "bootstrap_iters": 0}
    options |= {"apply_chat_template": chat, "fewshot_as_multiturn": chat}
    return dict(evaluate_with(Served(), {"tasks": parts}, **options)["samples"])


def scores_of(samples: Mapping[str, Sequence[Mapping[str, Any]]], metric: str | None) -> tuple[str, Scores]:
    """Return the name of the metric and the score of each question.

    Args:
        samples: ``lm-eval``'s samples of each part of the task.
        metric: ``NAME,FILTER``; by default the first metric that scores every question.

    Raises ConfigError if the metric does not exist, or does not score each question of each part.
    """
    complete = []  # for each part, the metrics (NAME,FILTER) that score all its questions
    for part_samples in samples.values():
        questions = Counter(sample["filter"] for sample in part_samples)
        counts = Counter(
            (name, sample["filter"])
            for sample in part_samples
            for name in sample["metrics"]
            if isinstance(sample[name], int | float)
        )
        complete.append(
            [f"{name},{kind}" for (name, kind), count in counts.items() if count == questions[kind]]
        )
    names = [name for name in next(iter(complete), []) if all(name in metrics for metrics in complete)]
    chosen = metric or next(iter(names), "")
    if chosen not in names:
        message = f"the task has no metric {chosen!r} that scores each question of each part"
        hint = (
            f"companion.evaluate.metric: {' or '.join(names)}"
            if names
            else "list the parts of this task in companion.evaluate.tasks instead"
        )
        raise tasks.refusal("metric", message, hint)
    name, _, kind = chosen.rpartition(",")
    flat = [
        (f"{part}/{sample['doc_hash'][:16]}", sample)
        for part, part_samples in samples.items()
        for sample in part_samples
    ]
    return chosen, {key: float(sample[name]) for key, sample in flat if sample["filter"] == kind}


def _readable(task: str, metric: str, samples: Mapping[str, Any], *, chat: bool) -> Iterator[str]:
    """Yield a line of JSON for each question of a task, with its target, answer and score."""
    name, _, kind = metric.rpartition(",")
    for part, part_samples in samples.items():
        for sample in (sample for sample in part_samples if sample["filter"] == kind):
            [(question, *_), *_], [[answer, *_], *_] = sample["arguments"], sample["resps"]
            question = json.loads(question)[-1]["content"] if chat else question
            line = {"task": task, "part": part, "question": question, "target": sample["target"]}
            line |= {"answer": answer, "taken": sample["filtered_resps"][0], "score": sample[name]}
            yield f"{json.dumps(line, default=str, ensure_ascii=False)}\n"
