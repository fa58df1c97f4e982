"""Ask a served model the questions of tasks, save each answer, and score the answers."""

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
"""A text, or a chat's messages as JSON, with the options of the request."""
CONCURRENCY = 32
"""Most questions in flight."""
TIMEOUT_S = 600.0
"""Time limit of an answer in seconds."""
OnAnswer = Callable[[int, int], object]
"""Called after each answer with the numbers of answers and questions of the task."""


class Answers:
    """Answers to an evaluation's questions, from its file or from the server."""

    def __init__(self, file: Path, on_answer: OnAnswer) -> None:
        self._file, self._on_answer, self._known = file, on_answer, dict[str, str]()
        self.asked, self.kept, self.model = 0, 0, ""
        file.parent.mkdir(parents=True, exist_ok=True)
        for line in file.read_bytes().splitlines(keepends=True) if file.exists() else []:
            with suppress(ValueError):
                self._known |= json.loads(line)
            if not line.endswith(b"\n"):  # a killed process left an incomplete line
                with file.open("ab") as cut:
                    cut.write(b"\n")

    async def to(self, questions: Sequence[Question], client: AsyncClient, *, chat: bool) -> list[str]:
        """Return the answers in the order of the questions. Raises RequestFailed if an answer is missing."""
        seen, slots, work = Counter[str](), asyncio.Semaphore(CONCURRENCY), []
        before = self.asked + self.kept

        async def answer(key: str, text: str, options: dict[str, Any]) -> str:
            if key in self._known:
                self.kept += 1
                self._on_answer(self.asked + self.kept - before, len(questions))
                return self._known[key]
            async with slots:
                call = client.chat(json.loads(text), **options) if chat else client.generate(text, **options)
                reply = (await call).text
            self.asked += 1
            # Some servers include the stop word in the answer, others do not.
            ends = [place for word in options["stop_words"] if (place := reply.find(word)) >= 0]
            reply = reply[: min(ends, default=None)]
            with self._file.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps({key: reply})}\n")
            self._on_answer(self.asked + self.kept - before, len(questions))
            return reply

        for question in questions:
            words = json.dumps([chat, *question], sort_keys=True)
            key = hashlib.sha256(words.encode()).hexdigest()[:24]
            seen[key] += 1  # a repeated question gets a separate answer each time
            work.append(answer(f"{key}-{seen[key]}", *question))
        async with client:
            self.model = client.model.name
            return await gathered(work)


def options_of(own: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of requests from a task's ``generation_kwargs`` and the settings."""
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

    Answers of an earlier attempt with the same name are reused. ``client`` returns a client with OpenAI's
    protocol. Raises ConfigError if a task cannot be used, and RequestFailed if the server is lost or refuses
    a question; answers until then are kept.
    """
    answers = Answers(run.evaluation(name, "answers.jsonl"), on_answer)
    task_scores, scores, samples = list[TaskScore](), dict[str, Scores](), list[str]()
    for task, parts in [(task, tasks.load(task, settings)) for task in settings.tasks]:
        asked = tasks.asked_as(task, settings)
        of_parts = _samples(parts, answers, client(), asked, settings)
        metric, scores[task] = scores_of(of_parts, asked["metric"])
        samples += _readable(task, metric, of_parts, chat=asked["protocol"] == "chat")
        score = TaskScore(task, metric, *mean_of(list(scores[task].values())), len(scores[task]), asked)
        if settings.threshold is not None:
            score = against_threshold(score, settings.threshold)
        if settings.not_worse_than is not None and score.passed is not False:
            base = RunPaths(run.folder.parent / settings.not_worse_than)
            base_scores = (read_json(base.evaluation(kind="scores.json")) or {}).get(task, {})
            of_base = read_evaluation(base.evaluation())
            score = against_run(score, scores[task], of_base, base_scores, base.run_id, settings.tasks)
        task_scores.append(score)
    write_json(run.evaluation(name, "scores.json"), scores)
    write_text(run.evaluation(name, "samples.jsonl"), "".join(samples))
    summary = EvaluationSummary(answers.model, task_scores, answers.asked, answers.kept, version("lm-eval"))
    summary.write(run.evaluation(name))
    return summary


def _samples(
    parts: Mapping[str, Any], answers: Answers, client: AsyncClient, asked: Mapping[str, Any], own: Evaluation
) -> dict[str, list[dict[str, Any]]]:
    """Ask the questions of one task; return ``lm-eval``'s samples by part of the task."""
    from lm_eval.api.model import LM
    from lm_eval.evaluator import evaluate as evaluate_with

    chat = asked["protocol"] == "chat"

    class Served(LM):  # type: ignore[misc]  # lm-eval has no types
        """The served model as a model of ``lm-eval``."""

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
    """Return the metric's name and the score of each question, from ``lm-eval``'s samples of a task's parts.

    Raises ConfigError if there is no such metric, or if it does not score every question of every part.
    """
    of_parts = []  # for each part: metrics that score all of its questions, as NAME,FILTER
    for of_part in samples.values():
        questions = Counter(sample["filter"] for sample in of_part)
        counts = Counter(
            (name, sample["filter"])
            for sample in of_part
            for name in sample["metrics"]
            if isinstance(sample[name], int | float)
        )
        of_parts.append(
            [f"{name},{kind}" for (name, kind), count in counts.items() if count == questions[kind]]
        )
    names = [name for name in next(iter(of_parts), []) if all(name in known for known in of_parts)]
    chosen = metric or next(iter(names), "")
    if chosen not in names:
        message = f"the task has no metric {chosen!r} that scores every question of every part"
        hint = (
            f"companion.evaluate.metric: {' or '.join(names)}"
            if names
            else "name its parts as separate tasks"
        )
        raise tasks.refusal("metric", message, hint)
    name, _, kind = chosen.rpartition(",")
    return chosen, {
        f"{part}/{sample['doc_hash'][:16]}": float(sample[name])
        for part, of_part in samples.items()
        for sample in of_part
        if sample["filter"] == kind
    }


def _readable(task: str, metric: str, samples: Mapping[str, Any], *, chat: bool) -> Iterator[str]:
    """Yield a line of JSON for each question of a task, with its target, answer and score."""
    name, _, kind = metric.rpartition(",")
    for part, of_part in samples.items():
        for sample in (sample for sample in of_part if sample["filter"] == kind):
            [(question, *_), *_], [[answer, *_], *_] = sample["arguments"], sample["resps"]
            question = json.loads(question)[-1]["content"] if chat else question
            about = {"task": task, "part": part, "question": question, "target": sample["target"]}
            about |= {"answer": answer, "taken": sample["filtered_resps"][0], "score": sample[name]}
            yield f"{json.dumps(about, default=str, ensure_ascii=False)}\n"
