"""The sentences that findings become, by their codes."""

from __future__ import annotations

from dataclasses import replace

from trtllm_hpc.bench.results import Caveat

_LONGER = "Use more requests (--requests) or a longer window (--duration)."
_CLIENT = "give the client more cores or a node of its own, add --set processes=4, or lower the rate."
_EXACT = "The ids of --model tensorrt_llm are counted exactly."
_TOKENIZER = "Name the tokenizer's folder (workload.tokenizer, --tokenizer)."

SENTENCES = {
    # The server
    "server-gone": "The server was gone at the end: the last {value:,.0f} requests found none, or lost it.",
    "ended-server-gone": "The measurement ended early: the server was gone.",
    "requests-broke": "Requests broke during {step}: {ended}.",
    "server-hangs": (
        "The server hangs: the last {value:,.0f} requests got no answer. Before them, it had answered "
        "{answered:,}."
    ),
    "only-failures": (
        "The measurement ended early: {value:,.0f} requests in a row failed, with none answered in between "
        "(max_failures_in_a_row)."
    ),
    "no-answer": "None of {value:,.0f} requests was answered; the server's errors say why.",
    "no-answer-in-time": (
        "None of {value:,.0f} requests was answered in time: the server hangs, or is far too slow."
    ),
    "errors": (
        "{failed:,} of {measured:,} requests failed ({value:.1%}); the limit is {limit:.2%} "
        "(max_error_share). The figures cover only the others."
    ),
    "some-errors": (
        "{failed:,} of {measured:,} requests failed and have no latency: the tail that users see is longer "
        "than the one shown."
    ),
    "not-steady": (
        "The load was not steady: latency grew from {first_ms:.0f} ms in the first half of the window to "
        "{second_ms:.0f} ms in the second. The server did not keep up, or the warm-up was too short; a "
        "longer window would show even higher latencies."
    ),
    "gpus-slowed": (
        "Heat or a lack of power slowed GPUs down: {gpus}. Check cooling and power supply (nvidia-smi -q -d "
        "PERFORMANCE,TEMPERATURE on the node), or exclude the node."
    ),
    # The client
    "late": (
        "{late:,} of {measured:,} requests ({value:.1%}) were sent more than {allowed_ms:.2f} ms late (1 ms, "
        "or 2% of the median TTFT), the worst by {worst_ms:.1f} ms; the limit is {limit:.2%} "
        f"(max_late_share). The server did not get the requested load: {_CLIENT}"
    ),
    "some-late": (
        "{value:.1%} of the requests were sent late (the limit is {limit:.2%}), which changes no p50 or p99 "
        "by more than {effect:.0%}."
    ),
    "client-busy": (
        "The client's busiest process used {value:.0%} of a core. From {limit:.0%} on, the client is the "
        f"limit and not the server: {_CLIENT}"
    ),
    "slow-turnaround": (
        "The client took {mean_ms:.2f} ms from the end of an answer to its next request, {value:.1%} of the "
        "time; the limit is {limit:.0%}. The server had less load than requested, since {cause}."
    ),
    "late-stamps": (
        "The client may have stamped answers up to {bound_ms:.2f} ms late, {value:.0%} of the {figure} of "
        "{shown_ms:.2f} ms; the limit is {limit:.0%}. This figure is not to be trusted, since {cause}."
    ),
    # The length of the measurement
    "interrupted": "The measurement was interrupted, so it is shorter than requested.",
    "ended-interrupted": "The measurement was interrupted.",
    "unfinished": "The measurement did not finish.",
    "nothing-due": f"No request was due in the measured window. {_LONGER}",
    "few-requests": (
        f"Measured requests: {{value:,.0f}}; at least {{limit:,.0f}} are needed (min_requests). {_LONGER}"
    ),
    "few-answers": ("Answered requests: {value:,.0f}; below {limit:,.0f}, p99 is practically the maximum."),
    "short-window": (
        "The measured window is {value:.2f} s long; at least {limit:.2f} s are needed ({why}). " + _LONGER
    ),
    "turns-after-window": (
        "{after:,} of {turns:,} turns were due after the window and count for no figure. Use more "
        "conversations (--requests), or a longer window (--duration)."
    ),
    "repeated-prompts": (
        "{value:,.0f} requests repeated {limit:,.0f} prompts: a prompt cache of the server may have made "
        "answers faster. Measure a number of requests (--requests) instead of a time, or use a larger "
        "workload."
    ),
    # The tokens
    "tokens-unknown": (
        "The tokens of {unknown:,} of {answered:,} answers are unknown, so figures of tokens are missing. "
        + _TOKENIZER
    ),
    "empty-answers": (
        "{empty:,} of {answered:,} answers are empty, which makes them look fast; the limit is {limit:.2%} "
        "(max_error_share)."
    ),
    "wrong-length": (
        "{value:,.0f} of {answered:,} answers do not have the requested length (exact_output); the first has "
        "{tokens:,} tokens and not {requested:,}. Check that the model supports min_length (over OpenAI's "
        "protocol min_tokens and ignore_eos)."
    ),
    "joined-tokens": (
        "Each response of a stream had {value:.2f} tokens on average: the inter-token latency is that "
        "between responses."
    ),
    "text-length": (
        "{counted:,} of {requested:,} requested output tokens were found in the answers' texts, though "
        "exact_output keeps answers from ending early: other tokens have no text, such as special ones, and "
        f"the rates of tokens are wrong. {_EXACT}"
    ),
    "no-rate": "The search found no rate at which {slo} holds. {stopped}",
}


def sentence_of(finding: Caveat) -> str:
    """Return what a finding means, with its numbers, its limit, and what to do."""
    if finding.sentence:
        return finding.sentence
    known = {"value": finding.value, "limit": finding.limit, **finding.facts}
    return SENTENCES[finding.code].format(**known).strip()


def stated(finding: Caveat) -> Caveat:
    """Return a finding with its sentence."""
    return replace(finding, sentence=sentence_of(finding))
