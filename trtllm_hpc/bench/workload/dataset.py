"""Questions from a file; see :mod:`.entries` and :mod:`.fields` for its layouts."""

from __future__ import annotations

from pathlib import Path

from trtllm_hpc.bench.workload.asking import Asking, in_seeded_order
from trtllm_hpc.bench.workload.entries import read_entries
from trtllm_hpc.bench.workload.fields import Question, question_of
from trtllm_hpc.bench.workload.wanted import Built, Wanted, misread, some


def dataset(wanted: Wanted) -> Built:
    """The questions of the file in a seeded order, again and again.

    An answer may have as many tokens as the entry says, or, where it holds an
    answer, that many words times ``tokens_per_word``.
    """
    path = wanted.file
    found = read_questions(path, wanted.workload.tokens_per_word)
    questions = [question for question in found if question is not None]
    asking = Asking(wanted, path)
    requests = in_seeded_order(wanted, questions, asking)
    empty = len(found) - len(questions)
    note = (
        f"{empty:,} of {some(len(found), 'entry').replace('entrys', 'entries')} left out: nothing is asked."
    )
    return Built(requests, ([note] if empty else []) + asking.notes(), len(questions))


def read_questions(path: Path, tokens_per_word: float) -> list[Question | None]:
    """What each entry of the file asks; ``None`` for one that asks nothing.

    Raises:
        ConfigError: an entry cannot be read, or none asks anything; with file and line.
    """
    found = [question_of(path, entry, tokens_per_word) for entry in read_entries(path)]
    if not any(found):
        raise misread(path, None, "no entry asks anything: all prompts are empty")
    return found
