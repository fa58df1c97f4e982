"""``trtllm-serve``: reads its command line and its file, then starts a server, which this package cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import yaml
from tensorrt_llm.llmapi.disagg_utils import parse_disagg_config_file  # type: ignore[import-not-found]
from tensorrt_llm.llmapi.llm_args import update_llm_args_with_extra_dict  # type: ignore[import-not-found]


def launch_server(host: str, port: int, llm_args: dict[str, Any]) -> None:
    """Load the model."""
    raise AssertionError("no server may start")


class OpenAIDisaggServer:
    """The process in front."""

    def __init__(self, config: Any, req_timeout_secs: int) -> None:
        raise AssertionError("no server may start")


@click.command("serve")
@click.argument("model")
@click.option("--host", default="localhost")
@click.option("--port", type=int, default=8000)
@click.option("--backend", type=click.Choice(["pytorch", "tensorrt"]), default="pytorch")
@click.option("--tokenizer")
@click.option("--tensor_parallel_size", "--tp_size", type=int, default=1)
@click.option("--pipeline_parallel_size", "--pp_size", type=int, default=1)
@click.option("--moe_expert_parallel_size", "--ep_size", type=int)
@click.option("--gpus_per_node", type=int)
@click.option("--max_batch_size", type=int)
@click.option("--max_num_tokens", type=int)
@click.option("--max_seq_len", type=int)
@click.option("--config", "--extra_llm_api_options", "config")
def serve(host: str, port: int, config: str | None, **arguments: Any) -> None:
    """Serve MODEL."""
    extra = yaml.safe_load(Path(config).read_text()) if config else {}
    launch_server(host, port, update_llm_args_with_extra_dict(arguments, extra))


@click.command("disaggregated")
@click.option("-c", "--config_file", required=True)
@click.option("-t", "--server_start_timeout", type=int, default=180)
@click.option("-r", "--request_timeout", type=int, default=180)
def disaggregated(config_file: str, server_start_timeout: int, request_timeout: int) -> None:
    """Pass requests on."""
    OpenAIDisaggServer(config=parse_disagg_config_file(config_file), req_timeout_secs=request_timeout)


class DefaultGroup(click.Group):
    """Takes a first word that is not a sub-command for the model to serve."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            return "serve", self.commands["serve"], args
        return super().resolve_command(ctx, args)


main = DefaultGroup(commands={"serve": serve, "disaggregated": disaggregated})

if __name__ == "__main__":
    main()
