"""``trtllm-hpc client``: ask the served model."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_hpc.cli.options import runs_folder, runs_option, valid_text, wait_option
from trtllm_hpc.client.options import OPTIONS, Kind, Option
from trtllm_hpc.errors import RequestFailed, RunNotFound
from trtllm_hpc.paths import RunPaths, call_name, write_aside, write_json
from trtllm_hpc.runs.find import find_run

if TYPE_CHECKING:
    from trtllm_hpc.client.generate import Answer, Request
    from trtllm_hpc.runtime.records import Endpoint

_CLICK_TYPES: dict[Kind, Any] = {
    "count": click.INT,
    "number": click.FLOAT,
    "text": click.STRING,
    "texts": click.STRING,
    "numbers": click.FLOAT,
}
_DEFAULTS = {"max_tokens": 16}

Command = Callable[..., Any]


def _prompts(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Callback of ``--prompt``: the texts themselves, or for ``-`` what standard input holds."""
    texts = tuple(
        sys.stdin.buffer.read().decode("utf-8", "surrogateescape").removesuffix("\n") if it == "-" else it
        for it in values
    )
    return tuple(valid_text(ctx, param, texts))


def _request_options(command: Command) -> Command:
    """An option for each of a request; the command gets them as keyword arguments."""
    for option in reversed(OPTIONS):
        command = _click_option(option)(command)
    return command


def _click_option(option: Option) -> Callable[[Command], Command]:
    if option.kind == "flag":
        return click.option(option.flag, option.name, is_flag=True, help=option.help)
    several = option.kind in ("texts", "numbers")
    return click.option(
        option.flag,
        option.name,
        type=_CLICK_TYPES[option.kind],
        multiple=several,
        default=None if several else _DEFAULTS.get(option.name),
        show_default=option.name in _DEFAULTS,
        help=option.help,
        callback=valid_text if option.kind == "texts" else None,
    )


@click.command("client")
@runs_option
@click.argument("words", nargs=-1, metavar="[RUN] [PROMPT]...", callback=valid_text)
@click.option(
    "--prompt",
    "more",
    multiple=True,
    callback=_prompts,
    help="A prompt that other users of this machine must not see in the list of processes comes with"
    " '--prompt -' from standard input; a final newline is dropped.  [repeatable]",
)
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Prompts, one a line.",
)
@click.option("--model", metavar="NAME", help="[default: ensemble, or the first that takes text]")
@click.option(
    "--protocol",
    type=click.Choice(["grpc", "http", "both"]),
    default="grpc",
    show_default=True,
    help="With 'both', the two answers must be equal.",
)
@click.option(
    "--stream/--no-stream",
    default=None,
    help="Show the text as it is generated.  [default: of a single prompt over gRPC, if the model streams]",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Prompts asked at once.",
)
@click.option(
    "--stop-after-ms",
    type=click.IntRange(min=1),
    metavar="MS",
    help="End each answer after this time, on the server too.",
)
@click.option(
    "--timeout-seconds", type=click.FloatRange(min=0.1), default=120.0, show_default=True, metavar="S"
)
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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each prompt, a line each.")
@_request_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    runs: Path | None,
    words: tuple[str, ...],
    more: tuple[str, ...],
    file: Path | None,
    model: str | None,
    protocol: str,
    stream: bool | None,
    concurrency: int,
    stop_after_ms: int | None,
    timeout_seconds: float,
    wait_seconds: float,
    context_logits: bool,
    generation_logits: bool,
    save: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Ask the served model of RUN, and print its answers.

    RUN is latest by default. An answer is shown as it is generated where the model streams; Ctrl-C
    ends it on the server too. Options that the served model does not have are refused by name.

    \b
    Examples:
      trtllm-hpc client "What is machine learning?" --max-tokens 64
      trtllm-hpc client latest "A poem:" --temperature 0.8 --top-p 0.9 --seed 7
      trtllm-hpc client latest --prompt - < question.txt
      trtllm-hpc client latest --file prompts.txt --concurrency 8 --json
    """
    from trtllm_hpc.client.served_model import can_stream
    from trtllm_hpc.runs.endpoint import endpoint_of

    run, prompts = _run_and_prompts(words, [*more, *_lines(file)], ctx)
    wanted = {"context_logits": context_logits, "generation_logits": generation_logits}
    logits = [name for name, is_wanted in wanted.items() if is_wanted]
    _refuse_over_http(protocol, logits, stream, stop_after_ms)
    if save and len(prompts) > 1:
        raise click.UsageError("--save keeps one answer: ask one prompt.")
    endpoint = endpoint_of(run, wait_seconds)
    is_given = {name: it for name, it in options.items() if it not in (None, ()) and it is not False}
    given = {name: list(it) if isinstance(it, tuple) else it for name, it in is_given.items()}
    try:
        request = _request(endpoint, model, given, logits, stop_after_ms, timeout_seconds)
        if stream is None:
            shows = len(prompts) == 1 and not as_json and protocol == "grpc"
            stream = shows and _is_single(request) and can_stream(endpoint, request.model, timeout_seconds)
        requests = [replace(request, prompt=prompt, stream=stream) for prompt in prompts]
        _ask_all(run, endpoint, requests, protocol, concurrency, as_json=as_json, save=save)
    except RequestFailed as error:
        error.hint = error.hint or f"trtllm-hpc logs {call_name(run)} --rank 0"
        raise


def _run_and_prompts(
    words: Sequence[str], more: Sequence[str], ctx: click.Context
) -> tuple[RunPaths, list[str]]:
    """Tell the run from the prompts: the first word, if it is one, or if more words follow."""
    folder = runs_folder(ctx)
    if not words:
        run, prompts = find_run("latest", folder), list(more)
    elif len(words) == 1 and not more:
        try:
            run, prompts = find_run(words[0], folder), []
        except RunNotFound:
            run, prompts = find_run("latest", folder), [words[0]]
    else:
        run, prompts = find_run(words[0], folder), [*words[1:], *more]
    if not prompts:
        raise click.UsageError("A prompt is missing: trtllm-hpc client [RUN] PROMPT.")
    return run, prompts


def _lines(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        return [line for line in file.read_text(encoding="utf-8").splitlines() if line]
    except ValueError:
        raise click.UsageError(f"{file} is not valid UTF-8.") from None


def _refuse_over_http(
    protocol: str, logits: list[str], stream: bool | None, stop_after_ms: int | None
) -> None:
    if protocol == "http" and logits:
        raise click.UsageError("Logits come over gRPC only: leave out --protocol http.")
    if protocol != "grpc" and (stream or stop_after_ms):
        raise click.UsageError("--stream and --stop-after-ms work over gRPC only.")


def _request(
    endpoint: Endpoint,
    model: str | None,
    options: dict[str, Any],
    logits: list[str],
    stop_after_ms: int | None,
    timeout_s: float,
) -> Request:
    """Return what is asked with each prompt."""
    from trtllm_hpc.client.generate import Request
    from trtllm_hpc.client.served_model import describe, usual_model

    served = describe(endpoint, model or usual_model(endpoint), timeout_s)
    stop_after_s = None if stop_after_ms is None else stop_after_ms / 1000
    return Request(served, "", options, logits, stop_after_s=stop_after_s, timeout_s=timeout_s)


def _is_single(request: Request) -> bool:
    """Whether one text comes back, without logits: what else there is comes as a whole."""
    several = (request.options.get(name, 1) > 1 for name in ("beam_width", "return_sequences"))
    return not request.logits and not any(several)


def _ask_all(
    run: RunPaths,
    endpoint: Endpoint,
    requests: Sequence[Request],
    protocol: str,
    concurrency: int,
    *,
    as_json: bool,
    save: bool,
) -> None:
    """Ask the prompts, and print the answers in their order."""
    from trtllm_hpc.client.generate import answers as answers_to

    live = len(requests) == 1 and not as_json and requests[0].stream
    on_text = _echo_part if live else None

    def ask(request: Request, interrupted: threading.Event) -> list[Answer]:
        return _ask(endpoint, request, protocol, on_text, interrupted)

    for request, answers in zip(requests, answers_to(ask, requests, concurrency), strict=True):
        record = {
            "prompt": request.prompt,
            **request.options,
            "model": request.model.name,
            "host": endpoint.host,
            "answers": [answer.as_json() for answer in answers],
        }
        if save:
            _save(run, record, answers)
        if as_json:
            import json

            click.echo(json.dumps(record, ensure_ascii=False))
        else:
            _show(run, answers, is_shown=live, save=save)
        _refuse_different(answers)


def _ask(
    endpoint: Endpoint,
    request: Request,
    protocol: str,
    on_text: Callable[[str], object] | None,
    interrupted: threading.Event,
) -> list[Answer]:
    from trtllm_hpc.client.generate import ask_grpc, ask_http

    answers = [] if protocol == "http" else [ask_grpc(endpoint, request, on_text, interrupted)]
    return answers if protocol == "grpc" else [*answers, ask_http(endpoint, request)]


def _echo_part(text: str) -> None:
    from trtllm_hpc.logs.reading import for_output

    click.echo(for_output(text), nl=False)


def _show(run: RunPaths, answers: Sequence[Answer], *, is_shown: bool, save: bool) -> None:
    from trtllm_hpc.logs.reading import for_output

    for answer in answers:
        if is_shown:
            click.echo()
        else:
            for text in answer.texts or (answer.text,):
                click.echo(f"{answer.protocol} ({answer.latency_s * 1000:.0f} ms): {for_output(text)}")
        notes = [f"{answer.output_tokens} tokens" if answer.output_tokens is not None else ""]
        if answer.first_text_s is not None:
            notes.append(f"first text after {answer.first_text_s * 1000:.0f} ms")
            notes.append(f"all after {answer.latency_s * 1000:.0f} ms")
        if answer.is_stopped:
            notes.append("stopped early")
        if is_shown or answer.is_stopped:
            click.echo(", ".join(filter(None, notes)), err=True)
        if answer.log_probs is not None:
            click.echo("log-probs: " + " ".join(f"{value:.3f}" for value in answer.log_probs))
        for name, array in answer.logits.items():
            where = f" in {run.logits(name)}" if save else ""
            click.echo(f"{name}: {' x '.join(map(str, array.shape))}{where}")


def _save(run: RunPaths, record: dict[str, Any], answers: Sequence[Answer]) -> None:
    import numpy as np

    run.results.mkdir(exist_ok=True)
    for answer in answers:
        for name, array in answer.logits.items():
            with write_aside(run.logits(name)) as aside, aside.open("wb") as file:
                np.save(file, array)
    write_json(run.answer, record)


def _refuse_different(answers: Sequence[Answer]) -> None:
    if len({answer.text for answer in answers}) > 1:
        texts = "; ".join(f"{answer.protocol}: {answer.text!r}" for answer in answers)
        raise RequestFailed(
            f"The two protocols gave different answers to the same prompt. {texts}",
            hint="try --protocol grpc and --protocol http one by one; sampling makes answers differ",
        )
