"""``trtllm-hpc client``: ask a served model."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from trtllm_hpc.cli import shared
from trtllm_hpc.client.request import BY_NAME, MAX_TOKENS
from trtllm_hpc.errors import RequestFailed, RunNotFound
from trtllm_hpc.paths import RunPaths, call_name
from trtllm_hpc.runs.find import find_run

if TYPE_CHECKING:
    from trtllm_hpc.client.connect import Address

_TYPED = (
    *("max_tokens", "min_tokens", "temperature", "top_k", "top_p", "seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "beam_width"),
    *("stop_words", "bad_words", "end_id", "exclude_input", "log_probs", "lora_task_id"),
    *("context_logits", "generation_logits"),
)
"""Options of a request that have one here; all others go by ``--input``."""
_CLICK_TYPES = {"count": click.INT, "number": click.FLOAT, "texts": click.STRING, "flag": click.BOOL}


def _prompts(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Callback of ``--prompt``: the texts themselves, or for ``-`` what standard input holds."""
    texts = tuple(
        sys.stdin.buffer.read().decode("utf-8", "surrogateescape").removesuffix("\n") if it == "-" else it
        for it in values
    )
    return tuple(shared.valid_text(ctx, param, texts))


def _ids(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[list[int], ...]:
    """Callback of ``--token-ids``: a list of ids for each time it was given."""
    try:
        lists = tuple([int(word) for word in text.replace(",", " ").split()] for text in values)
    except ValueError:
        raise click.BadParameter("token ids are whole numbers with commas between, e.g. 5,7,9.") from None
    if not all(lists):
        raise click.BadParameter("a list of token ids is empty.")
    return lists


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


def _request_options(command: shared.Command) -> shared.Command:
    """An option for each of ``_TYPED``; the command gets them as keyword arguments."""
    for option in (BY_NAME[name] for name in reversed(_TYPED)):
        several, shown = option.kind == "texts", ""
        if option.name == "max_tokens":
            shown = f"  [default: {MAX_TOKENS}; of a --chat, what the server allows]"
        command = click.option(
            option.flag,
            option.name,
            is_flag=option.kind == "flag",
            type=_CLICK_TYPES[option.kind],
            multiple=several,
            default=None,
            help=option.help + ("  [repeatable]" if several else shown),
            callback=shared.valid_text if several else None,
        )(command)
    return command


@click.command("client")
@shared.runs_option
@click.argument("words", nargs=-1, metavar="[RUN] [PROMPT]...", callback=shared.valid_text)
@click.option(
    "--prompt",
    "more",
    multiple=True,
    callback=_prompts,
    help="A prompt that other users of this machine must not see in the list of processes comes with"
    " '--prompt -' from standard input; a final newline is dropped.  [repeatable]",
)
@click.option("--file", type=shared.EXISTING_FILE, help="Prompts, one a line.")
@click.option(
    "--token-ids",
    multiple=True,
    metavar="ID,ID,...",
    callback=_ids,
    help="A prompt of token ids, for 'tensorrt_llm'.  [repeatable]",
)
@click.option("--model", metavar="NAME", help="[default: ensemble, or the first that takes text]")
@shared.url_options(
    "Ask a server that was not started by this program instead of a run: http:// or https:// for OpenAI's"
    " protocol, grpc:// or grpcs:// for Triton's gRPC port."
)
@click.option(
    "--protocol",
    type=click.Choice(["grpc", "openai"]),
    help="How to ask a run.  [default: grpc, or openai where trtllm-serve serves]",
)
@click.option(
    "--chat", is_flag=True, help="Ask over OpenAI's chat, which puts the question into the model's template."
)
@click.option("--system", metavar="TEXT", callback=shared.valid_text, help="What a --chat begins with.")
@click.option(
    "--stream/--no-stream",
    default=None,
    help="Show the text as it is generated.  [default: of a single prompt, if the model streams]",
)
@click.option("--timeout-seconds", type=shared.Span(1, 0.1), default=120.0, show_default=True, metavar="S")
@shared.wait_option
@click.option(
    "--lora-dir",
    "lora_dirs",
    multiple=True,
    metavar="FOLDER",
    callback=shared.valid_text,
    help="Folder with a LoRA adapter as hf_lora_convert.py makes it. It is sent once, and again if the server"
    " has evicted it. For several prompts, one for each: '' is none.  [repeatable]",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_inputs,
    help="Any other input of the served model by its own name, e.g. min_p=0.1.  [repeatable]",
)
@click.option(
    "--save",
    is_flag=True,
    help="Write the answer into the run folder as results/request.json, in place of the companion's.",
)
@click.option(
    "--save-logits",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the arrays of --context-logits and --generation-logits into a NumPy file (.npz).",
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
    token_ids: tuple[list[int], ...],
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
      trtllm-hpc client latest --file prompts.txt --json
      trtllm-hpc client latest --chat --system "Answer in one sentence." "What is machine learning?"
      trtllm-hpc client --url http://node7:8000/v1 "What is machine learning?"
    """
    import asyncio

    from trtllm_hpc.cli.client_run import Asking
    from trtllm_hpc.runs.endpoint import endpoint_of

    try:
        lines = [] if file is None else file.read_text(encoding="utf-8").splitlines()
    except ValueError:
        raise click.UsageError(f"{file} is not valid UTF-8.") from None
    prompts: list[Any] = [*more, *filter(None, lines), *token_ids]
    run: RunPaths | None = None
    if address is not None:
        prompts = [*words, *prompts]
    else:
        run, prompts = _run_and_prompts(words, prompts, ctx)
    if not prompts:
        raise click.UsageError("A prompt is missing: trtllm-hpc client [RUN] PROMPT.")
    options = {name: given.pop(name) for name in _TYPED}
    if options["max_tokens"] is None and not given["chat"]:
        options["max_tokens"] = MAX_TOKENS
    given["options"] = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in options.items()
        if value is not None and value is not False and value != ()
    }
    asking = Asking(run=run, prompts=tuple(prompts), **given)
    target = address or endpoint_of(cast(RunPaths, run), wait_seconds)
    try:
        asyncio.run(asking.carry_out(target))
    except RequestFailed as error:
        if run is not None:
            error.hint = error.hint or f"trtllm-hpc logs {call_name(run)} --rank 0"
        raise


def _run_and_prompts(words: Sequence[str], more: list[Any], ctx: click.Context) -> tuple[RunPaths, list[Any]]:
    """Return run and prompts: the first word names a run if there is such a run, or if more words follow."""
    folder = shared.runs_folder(ctx)
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
