"""Hundreds of requests, some given up and some senseless: all answers right, and nothing left behind."""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from trtllm_hpc.reference.text import TextTokenizer

from . import malformed, servers
from .clients import ask_one, metric, tokens, wait_idle
from .conftest import Generate
from .footprint import Footprint, footprint, grown
from .servers import World
from .visitors import ACCUMULATES, MODEL, Question, Visitor

pytestmark = [pytest.mark.triton, pytest.mark.thorough, pytest.mark.timeout(600)]

END = 2
AT_ONCE = 16
"""Clients; the engine has 8 places."""
SHORT, LONG = 24, 100
"""Most tokens of an answer that is waited for, and tokens of one that is given up."""
DOOMED = 5
"""Requests of a client's process that is killed."""
MOST_PATIENCE_S = 1.0
"""Seconds after which a client at most gives up: some requests wait for a place then, most run."""
SETTLE_LIMIT_S = 20.0
TEXTS = (
    "What is machine learning?",
    "The scheduler",
    "Où est 你好🙂",
    "x",
    "  two spaces and\na new line\t",
    "Who wrote the letter?",
    "0 1 2 3 4",
    "ñ",
)

Visit = partial[None]


class Questions:
    """Greedy questions with the answers of transformers, and others with what the idle server answers."""

    def __init__(self, world: World, tokenizer: TextTokenizer, greedy: Generate, random: Random) -> None:
        self._random = random
        prompts = [tokenizer.encode(text) for text in TEXTS]
        self._long = [
            Question(text, prompt, LONG, {"end_id": -1}, greedy(prompt, LONG, None))
            for text, prompt in zip(TEXTS, prompts, strict=True)
        ]
        self._sampled = [_asked(world, self._drawn(number)) for number in range(12)]
        self._special = [_asked(world, self._changed(settings)) for settings in _special_settings()]

    def long(self) -> Question:
        return self._random.choice(self._long)

    def greedy(self) -> Question:
        question, count = self.long(), self._random.randint(1, SHORT)
        answer, end_id = question.answer[:count], self._random.choice([-1, END])
        if end_id in answer:
            answer = answer[: answer.index(end_id) + 1]
        return replace(question, count=count, settings={"end_id": end_id}, answer=answer)

    def of_text(self) -> Question:
        return self._random.choice([self.greedy(), self._random.choice(self._sampled)])

    def any(self) -> Question:
        return self._random.choice([self.of_text(), self._random.choice(self._special)])

    def _changed(self, settings: dict[str, Any]) -> Question:
        return replace(self.long(), count=SHORT // 2, settings={"end_id": -1, **settings})

    def _drawn(self, number: int) -> Question:
        random = self._random
        settings = {
            "runtime_top_k": random.choice([0, 5, 40]),
            "runtime_top_p": random.choice([0.5, 0.9, 1.0]),
            "temperature": random.choice([0.7, 1.0, 1.5]),
            "repetition_penalty": random.choice([1.0, 1.2]),
            "presence_penalty": random.choice([0.0, 0.5]),
            "min_length": random.choice([0, 4]),
            "random_seed": number,
        }
        return replace(self._changed(settings), count=random.randint(4, SHORT))


def _special_settings() -> list[dict[str, Any]]:
    random = np.random.default_rng(7)
    adapter = random.normal(0, 0.3, (1, 1, 2 * 256 + 256 * 2)).tolist()
    return [
        {"beam_width": 2},
        {"beam_width": 4, "len_penalty": 1.0},
        {"bad_words_list": [[[5, 6, 7], [1, 3, -1]]], "stop_words_list": [[[91, 60], [1, 2]]]},
        {"embedding_bias": random.normal(0, 3, (1, 512)).tolist(), "repetition_penalty": 1.5},
        {"lora_task_id": 1, "lora_weights": adapter, "lora_config": [[[1, 0, 2]]]},
    ]


def _asked(world: World, question: Question) -> Question:
    return replace(question, answer=tokens(ask_one(world, MODEL, question.inputs())))


@dataclass(frozen=True)
class Plan:
    """Draws visits. All is drawn before the first is paid, so that the same seed gives the same plan."""

    visitor: Visitor
    questions: Questions
    random: Random
    decoupled: bool
    senseless: Iterator[Visit]
    stopped: list[int]
    """Lengths of the answers that were stopped."""

    def visits(self, requests: int) -> list[Visit]:
        """20 % given up midway, some by a client's death, 10 % senseless, the rest well-formed."""
        given_up, senseless = requests // 5, requests // 10
        deaths = max(1, given_up // 8 // DOOMED)
        visits = [
            *(self._death() for _ in range(deaths)),
            *(self._given_up() for _ in range(given_up - deaths * DOOMED)),
            *itertools.islice(self.senseless, senseless),
            *(self._well_formed() for _ in range(requests - given_up - senseless)),
        ]
        self.random.shuffle(visits)
        return visits

    def _well_formed(self) -> Visit:
        visitor, questions, model = self.visitor, self.questions, self._text_model()
        ways: list[Visit] = [
            partial(visitor.tokens, questions.any()),
            partial(visitor.everything, questions.greedy()),
            partial(visitor.text, questions.of_text(), model),
        ]
        if self.decoupled:
            ways += [
                partial(visitor.streamed_tokens, questions.of_text()),
                partial(visitor.streamed_text, questions.of_text(), model),
                partial(visitor.batch, questions.any()),
            ]
        else:
            ways.append(partial(visitor.unary_tokens, questions.any()))
        return self.random.choice(ways)

    def _given_up(self) -> Visit:
        visitor, question, model = self.visitor, self.questions.long(), self._text_model()
        after_s = self.random.uniform(0, MOST_PATIENCE_S)
        ways: list[Visit] = [
            partial(visitor.cancel_whole, question, after_s, self.random.choice([MODEL, model])),
            partial(visitor.stop, question, after_s, self.stopped),
            partial(visitor.hang_up, question, model, is_streaming=False, is_polite=self._coin()),
        ]
        if self.decoupled:
            ways += [
                partial(visitor.cancel_stream, question, self.random.randint(1, LONG // 2)),
                partial(visitor.stop_stream, question, self.random.randint(1, LONG // 2), self.stopped),
                partial(visitor.hang_up, question, model, is_streaming=True, is_polite=self._coin()),
            ]
        else:
            ways += [
                partial(visitor.stop, question, after_s, self.stopped),
                partial(visitor.cancel_unary, question, after_s),
                partial(visitor.run_out_of_time, question, after_s / 10 + 0.01),
            ]
        return self.random.choice(ways)

    def _death(self) -> Visit:
        return partial(
            self.visitor.die, self.questions.long(), DOOMED, self.random.uniform(0, MOST_PATIENCE_S)
        )

    def _text_model(self) -> str:
        return self.random.choice(list(ACCUMULATES))

    def _coin(self) -> bool:
        return self.random.random() < 0.5


def _senseless(world: World, random: Random) -> Iterator[Visit]:
    """Every senseless request, and then all again."""
    visits = [partial(malformed.refused_tensors, world, *case) for case in malformed.TENSORS]
    visits += [
        partial(malformed.refused_text, world, *case, random.choice(list(ACCUMULATES)))
        for case in malformed.TEXTS
    ]
    random.shuffle(visits)
    return itertools.cycle(visits)


def _pay(visits: list[Visit]) -> None:
    """Pay all visits, some at once; every one that went wrong is told."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        errors = [future.exception() for future in [threads.submit(visit) for visit in visits]]
    wrong = [
        f"{visit.func.__name__}{visit.args[:1]}: " + "".join(traceback.format_exception(error))
        for visit, error in zip(visits, errors, strict=True)
        if error is not None
    ]
    assert not wrong, f"{len(wrong)} visits went wrong:\n" + "\n".join(wrong[:5])


def _settled(world: World, before: Footprint) -> list[str]:
    """What has grown and stays so: Triton takes a moment to close the connections of clients that died."""
    deadline = time.monotonic() + SETTLE_LIMIT_S
    while (found := grown(before, footprint(world))) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch computes with one thread here: two that wait for each other are slow on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("ranks", "decoupled", "first", "rest"),
    [(1, True, 100, 400), (2, False, 60, 60)],
)
@pytest.mark.alone  # a request that is stopped midway must still be running
@pytest.mark.usefixtures("one_thread")
def test_all_answers_are_right_and_nothing_is_left(
    ranks: int,
    decoupled: bool,
    first: int,
    rest: int,
    engines: dict[int, Path],
    tmp_path: Path,
    tokenizer: TextTokenizer,
    greedy: Generate,
) -> None:
    random = Random(2026)
    options = {"decoupled": decoupled, "bls_instances": 2, "accumulate_tokens": "true"}
    with servers.serve(tmp_path, engines[ranks], ranks=ranks, **options) as world:
        visitor, questions = Visitor(world, tokenizer), Questions(world, tokenizer, greedy, random)
        plan = Plan(visitor, questions, random, decoupled, _senseless(world, random), stopped=[])
        _pay(plan.visits(first))
        wait_idle(world)
        before = footprint(world)
        _pay(plan.visits(rest))
        wait_idle(world)
        assert not _settled(world, before)
        assert metric(world, "nv_trt_llm_request_metrics", "waiting") == 0
        visitor.tokens(questions.long())
    assert any(0 < length < LONG for length in plan.stopped), "no answer was stopped midway"
