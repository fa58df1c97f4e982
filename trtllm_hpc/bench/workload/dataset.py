"""Questions from a file; see :mod:`.entries` and :mod:`.fields` for its layouts."""

from __future__ import annotations

from trtllm_hpc.bench.workload.asking import Asking, in_seeded_order
from trtllm_hpc.bench.workload.entries import read_entries
from trtllm_hpc.bench.workload.fields import question_of
from trtllm_hpc.bench.workload.wanted import Built, Wanted, misread, some


def dataset(wanted: Wanted) -> Built:
    """The questions of the file in a seeded order, again and again.

    An answer may have as many tokens as the entry says, or, where it holds an
    answer, that many words times ``tokens_per_word``.
    """
    path, per_word = wanted.file, wanted.workload.tokens_per_word
    found = [question_of(path, entry, per_word) for entry in read_entries(path)]
    questions = [question for question in found if question is not None]
    if not questions:
        raise misread(path, None, "no entry asks anything: all prompts are empty")
    asking = Asking(wanted, path)
    requests = in_seeded_order(wanted, questions, asking)
    empty = len(found) - len(questions)
    note = (
        f"{empty:,} of {some(len(found), 'entry').replace('entrys', 'entries')} left out: nothing is asked."
    )
    return Built(requests, ([note] if empty else []) + asking.notes())
