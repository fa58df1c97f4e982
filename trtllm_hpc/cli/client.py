"""``trtllm-hpc client``: ask a served model."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from trtllm_hpc.cli.options import (
    EXISTING_FILE,
    Command,
    OutputFile,
    Time,
    runs_folder,
    runs_option,
    url_options,
    valid_text,
    wait_option,
)
from trtllm_hpc.client.options import OPTIONS, Kind
from trtllm_hpc.client.request import MAX_TOKENS
from trtllm_hpc.errors import RequestFailed, RunNotFound
from trtllm_hpc.paths import RunPaths, call_name
from trtllm_hpc.runs.find import find_run

if TYPE_CHECKING:
    from trtllm_hpc.client.connect import Address

_CLICK_TYPES: dict[Kind, Any] = {
    "count": click.INT,
    "number": click.FLOAT,
    "numbers": click.FLOAT,
    "array": EXISTING_FILE,
}
"""The others are texts."""
_METAVARS: dict[Kind, str] = {"ids": "ID,ID,...", "array": "FILE"}
_DEFAULTS = {"max_tokens": MAX_TOKENS}


def _prompts(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Callback of ``--prompt``: the texts themselves, or for ``-`` what standard input holds."""
    texts = tuple(
        sys.stdin.buffer.read().decode("utf-8", "surrogateescape").removesuffix("\n") if it == "-" else it
        for it in values
    )
    return tuple(valid_text(ctx, param, texts))


def _ids(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Callback of an option with token ids: one list, or one for each time it was given."""
    if value is None:
        return None
    texts = (value,) if isinstance(value, str) else value
    try:
        lists = tuple([int(word) for word in text.replace(",", " ").split()] for text in texts)
    except ValueError:
        raise click.BadParameter("token ids are whole numbers with commas between, e.g. 5,7,9.") from None
    if not all(lists):
        raise click.BadParameter("a list of token ids is empty.")
    return lists[0] if isinstance(value, str) else lists


def _array(ctx: click.Context, param: click.Parameter, value: Path | None) -> Any:
    """Callback of an option with a NumPy file."""
    if value is None:
        return None
    import numpy as np

    try:
        return np.load(value, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise click.BadParameter(f"{value} is not a NumPy array (.npy): {error}") from None


def _inputs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """Callback of ``--input``: values by input, as JSON where they are JSON."""
    import json

    inputs: dict[str, Any] = {}
    for given in values:
        name, separator, text = given.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{given!r} is not NAME=VALUE.")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if value is None or isinstance(value, dict):
            raise click.BadParameter(
                f"{given!r}: a value is a text, a number, true, false, or a list of them."
            )
        inputs[name] = value
    return inputs


_CALLBACKS: dict[Kind, Any] = {"texts": valid_text, "ids": _ids, "array": _array}


def _request_options(command: Command) -> Command:
    """An option for each of a request; the command gets them as keyword arguments."""
    for option in reversed(OPTIONS):
        several = option.kind in ("texts", "numbers")
        command = click.option(
            option.flag,
            option.name,
            is_flag=option.kind == "flag",
            type=_CLICK_TYPES.get(option.kind),
            metavar=_METAVARS.get(option.kind),
            multiple=several,
            default=_DEFAULTS.get(option.name),
            show_default=option.name in _DEFAULTS,
            help=option.help + ("  [repeatable]" if several else ""),
            callback=_CALLBACKS.get(option.kind),
        )(command)
    return command


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
@click.option("--file", type=EXISTING_FILE, help="Prompts, one a line.")
@click.option(
    "--token-ids",
    multiple=True,
    metavar="ID,ID,...",
    callback=_ids,
    help="A prompt of token ids, for 'tensorrt_llm'.  [repeatable]",
)
@click.option("--model", metavar="NAME", help="[default: ensemble, or the first that takes text]")
@url_options(
    "Ask a server that was not started by this program instead of a run: http:// or https:// for Triton or"
    " OpenAI's protocol, grpc:// or grpcs:// for Triton's gRPC port."
)
@click.option(
    "--protocol",
    type=click.Choice(["grpc", "http", "both", "openai"]),
    help="How to ask a run; with 'both', the answers over gRPC and HTTP must be equal.  [default: grpc, or"
    " openai where trtllm-serve serves]",
)
@click.option(
    "--chat",
    is_flag=True,
    help="Ask over OpenAI's chat, which puts the question into the model's template. Without a prompt, on a"
    " terminal, it is a talk: Ctrl-C ends an answer, Ctrl-D the talk. Without --max-tokens the server says"
    " how long an answer may be.",
)
@click.option("--system", metavar="TEXT", callback=valid_text, help="What a --chat begins with.")
@click.option(
    "--check",
    is_flag=True,
    help="Ask the prompts every way the server has, and fail if the answers differ: its models one after the"
    " other by hand, 'ensemble', BLS and OpenAI's protocol, over gRPC and HTTP.",
)
@click.option(
    "--stream/--no-stream",
    default=None,
    help="Show the text as it is generated.  [default: of a single prompt, if the model streams]",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Prompts asked at once.",
)
@click.option("--batch", is_flag=True, help="Send all prompts as one request.")
@click.option(
    "--stop-after-ms",
    type=click.IntRange(min=1),
    metavar="MS",
    help="End each answer after this time, on the server too.",
)
@click.option("--timeout-seconds", type=Time(1, 0.1), default=120.0, show_default=True, metavar="S")
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    metavar="N",
    help="Send a request again if the server cannot be reached or was lost, and nothing of the answer came.",
)
@wait_option
@click.option(
    "--lora-dir",
    "lora_dirs",
    multiple=True,
    metavar="FOLDER",
    callback=valid_text,
    help="Folder with a LoRA adapter as hf_lora_convert.py makes it. It is sent once, and again if the server"
    " has evicted it. For several prompts, one for each: '' is none.  [repeatable]",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_inputs,
    help="Any other input of the served model by its own name, e.g. early_stopping=true.  [repeatable]",
)
@click.option("--request-id", metavar="ID", help="Id of the request on the server.  [default: a random one]")
@click.option(
    "--context-logits",
    is_flag=True,
    help="Request the logits of the prompt too (over gRPC; the engine must gather them).",
)
@click.option("--generation-logits", is_flag=True, help="Request the logits of the answer too.")
@click.option("--save-logits", type=OutputFile(), metavar="FILE", help="Write them into a NumPy file (.npz).")
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
    words: tuple[str, ...],
    more: tuple[str, ...],
    file: Path | None,
    runs: Any,
    wait_seconds: float,
    address: Address | None,
    **given: Any,
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
      trtllm-hpc client latest "Born in" --check
      trtllm-hpc client latest --chat --system "Answer in one sentence." "What is machine learning?"
      trtllm-hpc client --url http://node7:8000 "What is machine learning?"
    """
    from trtllm_hpc.cli.client_run import Asking, Settings
    from trtllm_hpc.runs.endpoint import endpoint_of

    prompts: list[Any] = [*more, *_lines(file), *given.pop("token_ids")]
    run: RunPaths | None = None
    if address is not None:
        prompts = [*words, *prompts]
    else:
        run, prompts = _run_and_prompts(words, prompts, ctx)
    is_talk = given["chat"] and not prompts and not given["as_json"] and sys.stdin.isatty()
    if not prompts and not is_talk:
        raise click.UsageError("A prompt is missing: trtllm-hpc client [RUN] PROMPT.")
    given["options"] = _given_options(given)
    if given["chat"] and ctx.get_parameter_source("max_tokens") is ParameterSource.DEFAULT:
        del given["options"]["max_tokens"]  # the server says how long an answer of a chat may be
    given["logits"] = [name for name in ("context_logits", "generation_logits") if given.pop(name)]
    settings = Settings(prompts=tuple(prompts), **given)
    settings.refuse_contradictions(is_run=run is not None)
    target = address or endpoint_of(cast(RunPaths, run), wait_seconds)
    try:
        if is_talk:
            from trtllm_hpc.cli.client_chat import talk

            talk(target, settings, run)
        else:
            Asking(target, settings, run).carry_out()
    except RequestFailed as error:
        if run is not None:
            error.hint = error.hint or f"trtllm-hpc logs {call_name(run)} --rank 0"
        raise


def _given_options(given: dict[str, Any]) -> dict[str, Any]:
    """Take the model's options out of ``given``, and return those that were given."""
    values = {option.name: given.pop(option.name) for option in OPTIONS}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value is not None and value is not False and not (isinstance(value, tuple) and not value)
    }


def _run_and_prompts(words: Sequence[str], more: list[Any], ctx: click.Context) -> tuple[RunPaths, list[Any]]:
    """Return run and prompts: the first word names a run if there is such a run, or if more words follow."""
    folder = runs_folder(ctx)
    if not words:
        return find_run("latest", folder), more
    if len(words) == 1 and not more:
        try:
            return find_run(words[0], folder), []
        except RunNotFound:
            return find_run("latest", folder), [words[0]]
    try:
        return find_run(words[0], folder), [*words[1:], *more]
    except RunNotFound as error:
        quoted = shlex.quote(" ".join(words))
        error.hint = f"trtllm-hpc client {quoted}, if all of it is the prompt: quote it"
        raise


def _lines(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        return [line for line in file.read_text(encoding="utf-8").splitlines() if line]
    except ValueError:
        raise click.UsageError(f"{file} is not valid UTF-8.") from None
