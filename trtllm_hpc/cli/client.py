"""``trtllm-hpc client``: send the served model a prompt."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from trtllm_hpc.cli.options import json_option, print_json, run_argument, valid_text, wait_option
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.paths import RunPaths, call_name, write_aside, write_json

if TYPE_CHECKING:
    from trtllm_hpc.client.generate import Answer
    from trtllm_hpc.runtime.records import Endpoint

_REQUEST_TIMEOUT_S = 120.0


def _prompt(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Callback of ``--prompt``: the text itself, or for ``-`` what standard input holds."""
    if value == "-":
        value = sys.stdin.buffer.read().decode("utf-8", "surrogateescape").removesuffix("\n")
    return str(valid_text(ctx, param, value))


@click.command("client")
@run_argument
@click.option(
    "--prompt",
    required=True,
    callback=_prompt,
    help="The prompt, as text; - reads standard input and drops a final newline.",
)
@click.option("--max-tokens", type=click.IntRange(min=1), default=16, show_default=True)
@click.option(
    "--protocol",
    type=click.Choice(["grpc", "http", "both"]),
    default="both",
    show_default=True,
    help="With 'both', the two answers must be equal.",
)
@click.option("--model", default="ensemble", show_default=True)
@wait_option
@click.option(
    "--context-logits",
    is_flag=True,
    help="Request the logits of the prompt too (over gRPC; the engine must gather them).",
)
@click.option("--generation-logits", is_flag=True, help="Request the logits of the answer too.")
@click.option(
    "--save",
    is_flag=True,
    help="Write the answer into the run folder as results/request.json, and logits beside it as .npy;"
    " this replaces the companion's answer.",
)
@json_option
def command(
    run: RunPaths,
    runs: Any,
    prompt: str,
    max_tokens: int,
    protocol: str,
    model: str,
    wait_seconds: float,
    context_logits: bool,
    generation_logits: bool,
    save: bool,
    as_json: bool,
) -> None:
    """Send the served model of RUN a prompt and print its answer.

    \b
    Example:
      trtllm-hpc client latest --prompt "What is machine learning?" --max-tokens 64
      trtllm-hpc client latest --prompt - < question.txt
    """
    from trtllm_hpc.runs.endpoint import endpoint_of

    requested = {"context_logits": context_logits, "generation_logits": generation_logits}
    logits = [name for name, wanted in requested.items() if wanted]
    if logits and protocol == "http":
        raise click.UsageError("Logits come over gRPC only: leave out --protocol http.")
    endpoint = endpoint_of(run, wait_seconds)
    try:
        answers = _generate(endpoint, protocol, prompt, max_tokens, model, logits)
    except RequestFailed as error:
        error.hint = error.hint or f"trtllm-hpc logs {call_name(run)} --rank 0"
        raise
    record = {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "model": model,
        "host": endpoint.host,
        "answers": [answer.as_json() for answer in answers],
    }
    if save:
        _save(run, record, answers)
    if as_json:
        print_json(record)
    else:
        from trtllm_hpc.logs.reading import for_output

        for answer in answers:
            click.echo(f"{answer.protocol} ({answer.latency_s * 1000:.0f} ms): {for_output(answer.text)}")
            for name, array in answer.logits.items():
                where = f" in {run.logits(name)}" if save else ""
                click.echo(f"{name}: {' x '.join(map(str, array.shape))}{where}")
    _refuse_different(answers)


def _save(run: RunPaths, record: dict[str, Any], answers: list[Answer]) -> None:
    import numpy as np

    run.results.mkdir(exist_ok=True)
    for answer in answers:
        for name, array in answer.logits.items():
            with write_aside(run.logits(name)) as aside, aside.open("wb") as file:
                np.save(file, array)
    write_json(run.answer, record)


def _generate(
    endpoint: Endpoint, protocol: str, prompt: str, max_tokens: int, model: str, logits: list[str]
) -> list[Answer]:
    from trtllm_hpc.client.generate import generate_grpc, generate_http

    request = (endpoint, prompt, max_tokens, _REQUEST_TIMEOUT_S, model)
    answers = [] if protocol == "http" else [generate_grpc(*request, logits=logits)]
    return answers if protocol == "grpc" else [*answers, generate_http(*request)]


def _refuse_different(answers: list[Answer]) -> None:
    if len({answer.text for answer in answers}) > 1:
        texts = "; ".join(f"{answer.protocol}: {answer.text!r}" for answer in answers)
        raise RequestFailed(
            f"The two protocols gave different answers to the same prompt. {texts}",
            hint="try --protocol grpc and --protocol http one by one; sampling makes answers differ",
        )
