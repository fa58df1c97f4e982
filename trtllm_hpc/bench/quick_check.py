"""A check before the first level of load: are answers under load as sane as those to lone requests?

Rounding differs with the size of a batch, so another text that begins alike is healthy. Answers are only
compared with lone ones: a model with random weights repeats itself in either case.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any, NamedTuple

from trtllm_hpc.bench.load.loops import ClosedPlan
from trtllm_hpc.bench.load.messages import CHAT, Reply, Target, encode_request, parse_reply
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.results import QuickCheck
from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.client.options import BY_NAME
from trtllm_hpc.errors import NotReady

_AT_ONCE, _PROMPTS, _MAX_TOKENS = 64, 4, 8
_LONGEST = 256
"""Letters or token IDs of a prompt."""
_LEAST_ALIKE = 0.1
"""Share of the answers: rounding does not change the beginnings of more, to every prompt."""
_REPEATED, _LONGEST_UNIT = (0.5, 0.75), 8
"""Share of one token, here of at most so many letters, that no lone answer has, and a garbled answer has."""
_NATS = 3.0
EMPTY, REPEATS, SCRIPTS = "empty", "one token repeated", "in another script"
UNLIKELY, UNLIKE = "far less likely to the model itself", "with another beginning"


class Answer(NamedTuple):
    """A complete answer: its text, or token IDs, and the mean log-probability of its tokens, if reported."""

    tokens: str | tuple[int, ...]
    log_prob: float | None = None


def check_under_load(requests: Sequence[Request], targets: Sequence[Target], clock: Clock) -> QuickCheck:
    """Compare short answers alone and 64 at once; each prompt goes to one of the targets, to each target two.

    Raises KeyboardInterrupt on Ctrl-C.
    """
    prompts = _prompts(requests, max(_PROMPTS, 2 * len(targets)))
    asked = list(zip(prompts, cycle(targets), strict=False))
    try:
        for log_probs in (True, False):  # some servers and models refuse to report them
            # The first once more: a server that draws its tokens at random answers it in another way.
            alone = _ask([*asked, asked[0]], clock, 1, log_probs)
            if all(reply.ok for reply in alone):
                break
            failed = next(reply.error or reply.status for reply in alone if not reply.ok)
        else:
            return QuickCheck(f"not made: a lone request failed: {failed}")
        loaded = _ask((asked * _AT_ONCE)[:_AT_ONCE], clock, _AT_ONCE, log_probs)
    except NotReady as error:
        return QuickCheck(f"not made: {error.message}")
    *lone, again = (_answer(reply, targets[0]) for reply in alone)
    answers = [(reply.index % len(prompts), _answer(reply, targets[0])) for reply in loaded if reply.ok]
    return judge(prompts, lone, answers, is_greedy=_alike(again, lone[0]))


def _prompts(requests: Sequence[Request], most: int) -> list[Request]:
    """Return the ends of a few prompts: their beginnings would be in the KV cache when they are measured."""
    found = dict[Any, Request]()
    for request in requests[:_AT_ONCE]:
        whole: Any = request.token_ids or request.prompt
        end = whole[max(len(whole) // 2, len(whole) - _LONGEST) :]
        key = "prompt" if isinstance(end, str) else "token_ids"
        short = {key: end, "max_tokens": _MAX_TOKENS, "lora_task_id": None}
        found.setdefault(end, replace(request, **short))
    return list(found.values())[:most]


def _ask(asked: Sequence[tuple[Request, Target]], clock: Clock, at_once: int, log_probs: bool) -> list[Reply]:
    """Return the replies to greedy requests; Triton's models are greedy unless they are asked otherwise."""
    payloads = []
    for index, (request, target) in enumerate(asked):
        name = "logprobs" if target.is_openai else BY_NAME["log_probs"].input_of(target.served)
        value = 1 if target.is_openai and target.protocol != CHAT else True
        more = {"temperature": 0} if target.is_openai else {}
        more |= {name: value} if name and log_probs else {}
        payloads.append(encode_request(request, replace(target, min_length_input=None), str(index), more))
    load = run_load(ClosedPlan(asked[0][1], payloads, clock, at_once, count=len(payloads), max_failures=2))
    if load.interrupted:
        raise KeyboardInterrupt
    return sorted(load.replies, key=lambda reply: reply.index)


def _answer(reply: Reply, target: Target) -> Answer:
    parsed = parse_reply(reply, target)
    chunks = [chunk.log_probs for chunk in parsed.chunks if chunk.log_probs]
    # Triton's models report all tokens so far, OpenAI's protocol those of each event.
    values = [value for chunk in (chunks if target.is_openai else chunks[-1:]) for value in chunk]
    mean = math.fsum(values) / len(values) if values else None
    return Answer(parsed.token_ids or (parsed.text or "").strip(), mean)


def judge(
    prompts: Sequence[Request],
    lone: Sequence[Answer],
    answers: Sequence[tuple[int, Answer]],
    *,
    is_greedy: bool = True,
) -> QuickCheck:
    """Compare each answer under load, with its prompt's index, with the lone answer to that prompt.

    A single odd answer, or odd answers to one prompt of several, may be an accident of rounding.
    """
    known = {script for it in prompts for script in _scripts(it.prompt or "")}
    known |= {script for it in lone for script in _scripts(it.tokens)}
    repeats = max(map(_repeated_share, lone)) >= _REPEATED[0]
    begins = is_greedy and sum(_alike(it, lone[place]) for place, it in answers) < _LEAST_ALIKE * len(answers)
    faults = [(_fault(it, lone[place], known, repeats, begins), place, it) for place, it in answers]
    bad = [(kind, place, it) for kind, place, it in faults if kind]
    equal = sum(it.tokens == lone[place].tokens for place, it in answers)
    garbled, finding = dict(Counter(kind for kind, _, _ in bad)), None
    counts = {"equal to the lone ones": equal, **garbled, "failed": _AT_ONCE - len(answers)}
    said = ", ".join(f"{count} {what}" for what, count in counts.items() if count or what != "failed")
    sentence = f"{_AT_ONCE} requests at once, answers: {said}"
    if not is_greedy:
        sentence += "; the server draws tokens at random, even for a lone request"
    if len(bad) >= 2 and len({place for _, place, _ in bad}) >= min(2, len(prompts)):
        _, place, it = bad[0]
        example = f"{it.tokens[:60]!r}, where the lone answer is {lone[place].tokens[:60]!r}"
        finding = f"The server garbles answers under load ({sentence}), for example {example}."
    return QuickCheck(sentence, len(answers), equal, garbled, finding)


def _fault(it: Answer, lone: Answer, known: set[str], repeats: bool, begins: bool) -> str | None:
    """Return what is wrong with an answer that rounding does not explain."""
    if it.tokens == lone.tokens or not it.tokens:
        return None if it.tokens == lone.tokens else EMPTY
    if not repeats and _repeated_share(it) >= _REPEATED[1]:
        return REPEATS
    scripts = _scripts(it.tokens)
    if sum(count for script, count in scripts.items() if script not in known) * 2 > scripts.total():
        return SCRIPTS
    # Not the other way round: NaN is unlikely, too.
    if it.log_prob is not None and lone.log_prob is not None and not it.log_prob >= lone.log_prob - _NATS:
        return UNLIKELY
    return UNLIKE if begins and not _alike(it, lone) else None


def _alike(it: Answer, lone: Answer) -> bool:
    """Return whether two answers begin with the same token, or the same four letters."""
    length = 4 if isinstance(lone.tokens, str) else 1
    return it.tokens[:length] == lone.tokens[:length]


def _repeated_share(it: Answer) -> float:
    """Return the largest share of an answer, at its end, that is the same few letters or token again."""
    tokens, longest = it.tokens, 0
    for unit in range(1, _LONGEST_UNIT + 1 if isinstance(tokens, str) else 2):
        same = 0
        while same + unit < len(tokens) and tokens[-1 - same] == tokens[-1 - same - unit]:
            same += 1
        longest = max(longest, same + unit if same + unit >= max(4 * unit, 6) else 0)
    return longest / max(1, len(tokens))


def _scripts(tokens: str | tuple[int, ...]) -> Counter[str]:
    """Return the number of letters of each script: by the first word of their names, such as ``LATIN``."""
    letters = [it for it in tokens if it.isalpha() or it == "\ufffd"] if isinstance(tokens, str) else []
    return Counter(unicodedata.name(letter, "?").partition(" ")[0] for letter in letters)
