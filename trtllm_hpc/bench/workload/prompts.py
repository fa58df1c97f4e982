"""The prompts that the settings give, or a few built-in ones of different length."""

from __future__ import annotations

from trtllm_hpc.bench.workload.asking import Asking, in_seeded_order
from trtllm_hpc.bench.workload.fields import Question
from trtllm_hpc.bench.workload.wanted import Built, Wanted

BUILT_IN = (
    "What is machine learning?",
    "Name three rivers of Europe.",
    "Translate to French: good morning.",
    "Explain in one paragraph why the sky is blue.",
    "Write a short poem about a ship that comes home after a long winter.",
    "List the steps to make tea, and say which of them matters most for the taste.",
    "A train leaves at noon at 80 kilometres an hour. How far has it come at half past two?",
    "Summarise in two sentences what an operating system does for the programs that it runs.",
)


def prompts(wanted: Wanted) -> Built:
    """The given prompts in a seeded order, again and again."""
    offered = wanted.workload.prompts or BUILT_IN
    questions = [Question(number, f"prompt {number}", prompt) for number, prompt in enumerate(offered, 1)]
    asking = Asking(wanted)
    requests = in_seeded_order(wanted, questions, asking)
    return Built(requests, asking.notes(), len(questions))
