"""``trtllm-hpc client``: send prompts to a served model."""

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
"""Names of the request options that are command-line options; ``--input`` sets all others."""
_FIRST = (
    *("--prompt", "--file", "--chat", "--system", "--max-tokens", "--temperature", "--top-p", "--seed"),
    *("--model", "--url", "--key-file", "--wait-seconds", "--json"),
)
"""Options in ``--help``; ``--help-all`` shows the others, too."""
_CLICK_TYPES = {"count": click.INT, "number": click.FLOAT, "texts": click.STRING, "flag": click.BOOL}


def _prompts(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Callback of ``--prompt``: return the texts, with the text from standard input for ``-``."""
    texts = tuple(
        sys.stdin.buffer.read().decode("utf-8", "surrogateescape").removesuffix("\n") if text == "-" else text
        for text in values
    )
    return tuple(shared.valid_text(ctx, param, texts))


def _ids(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[list[int], ...]:
    """Callback of ``--token-ids``: return a list of token IDs for each use of the option."""
    try:
        lists = tuple([int(word) for word in text.replace(",", " ").split()] for text in values)
    except ValueError:
        raise click.BadParameter("token IDs are integers, separated by commas, e.g. 5,7,9.") from None
    if not all(lists):
        raise click.BadParameter("a list of token IDs is empty.")
    return lists


def _inputs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """Callback of ``--input``: return the values by name, parsed as JSON if they are JSON."""
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
                f"{given!r}: the value must be a text, a number, true, false, or a list of these."
            )
        inputs[name] = value
    return inputs


def _request_options(command: shared.Command) -> shared.Command:
    """Add an option for each name in ``_TYPED``."""
    for option in (BY_NAME[name] for name in reversed(_TYPED)):
        several, shown = option.kind == "texts", ""
        if option.name == "max_tokens":
            shown = f"  [default: {MAX_TOKENS}; with --chat, the server's limit]"
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


@click.command("client", cls=shared.BriefCommand, first=_FIRST)
@shared.runs_option
@click.argument("words", nargs=-1, metavar="[RUN] [PROMPT]...", callback=shared.valid_text)
@click.option(
    "--prompt",
    "more",
    multiple=True,
    callback=_prompts,
    help="A prompt; '-' reads it from standard input, so that 'ps' does not show it.  [repeatable]",
)
@click.option("--file", type=shared.EXISTING_FILE, help="File with a prompt on each line.")
@click.option(
    "--token-ids",
    multiple=True,
    metavar="ID,ID,...",
    callback=_ids,
    help="A prompt as token IDs, for the model tensorrt_llm.  [repeatable]",
)
@click.option(
    "--model", metavar="NAME", help="Model to ask.  [default: ensemble, or the first model that takes text]"
)
@shared.url_options(
    "Ask any other server: http:// or https:// for OpenAI's protocol, grpc:// or grpcs:// for Triton's gRPC"
    " port."
)
@click.option(
    "--protocol",
    type=click.Choice(["grpc", "openai"]),
    help="Protocol for a run.  [default: grpc, or openai with trtllm-serve]",
)
@click.option("--chat", is_flag=True, help="Ask over OpenAI's chat API, with the model's chat template.")
@click.option("--system", metavar="TEXT", callback=shared.valid_text, help="System message of --chat.")
@click.option(
    "--stream/--no-stream",
    default=None,
    help="Show the text as it is generated.  [default: for a single prompt, if the model streams]",
)
@click.option(
    "--timeout-seconds",
    type=shared.Span(1, 0.1),
    default=120.0,
    show_default=True,
    metavar="S",
    help="Limit for a whole answer.",
)
@shared.wait_option
@click.option(
    "--lora-dir",
    "lora_dirs",
    multiple=True,
    metavar="FOLDER",
    callback=shared.valid_text,
    help="Folder with a LoRA adapter from hf_lora_convert.py. Name one for all prompts, or one for each: ''"
    " is no adapter.  [repeatable]",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_inputs,
    help="Further input of the model, by the model's own name, e.g. min_p=0.1.  [repeatable]",
)
@click.option(
    "--save",
    is_flag=True,
    help="Write the answer to results/request.json in the run folder; it replaces the companion's.",
)
@click.option(
    "--save-logits",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the logits of --context-logits and --generation-logits to a NumPy file (.npz).",
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each prompt.")
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
    """Send prompts to the served model of RUN, and print the answers.

    Ctrl-C also ends the request on the server.

    \b
    Examples:
      trtllm-hpc client "What is machine learning?" --max-tokens 64
      trtllm-hpc client latest "A poem:" --temperature 0.8 --seed 7
      trtllm-hpc client latest --chat --system "Answer in one sentence." "What is MPI?"
      trtllm-hpc client latest --prompt - < question.txt
      trtllm-hpc client latest --file prompts.txt --json
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
    """Return run and prompts: the first word is a run if such a run exists, or if more words follow."""
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
        error.hint = f"to send all words as one prompt, quote them: trtllm-hpc client {quoted}"
        raise
