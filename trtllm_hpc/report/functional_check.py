"""The table of ``trtllm-hpc client --check``."""

from __future__ import annotations

from trtllm_hpc.client.functional_check import Check, CheckedAnswer
from trtllm_hpc.logs.reading import escaped
from trtllm_hpc.report.tables import Table, print_table

_SHOWN = 60
"""Letters of an answer; where it differs, from shortly before that place."""


def print_check(check: Check) -> None:
    """Print the answers as a table."""
    table = Table("prompt", "asked", "same", "answer")
    before = None
    for answer in check.answers:
        prompt = "" if answer.prompt == before else escaped(answer.prompt[:_SHOWN])
        before = answer.prompt
        table.add_row(prompt, answer.way, "yes" if answer.is_equal else "NO", _shown(answer))
    print_table(table)


def _shown(answer: CheckedAnswer) -> str:
    if answer.error is not None:
        return escaped(answer.error)
    if answer.is_equal:
        return escaped(answer.text[:_SHOWN])
    begin = max(answer.same_letters - 20, 0)
    return f"from letter {answer.same_letters + 1}: {escaped(answer.text[begin : begin + _SHOWN])}"
