"""``tensorrt_llm/commands/serve.py`` (1.3.0rc3) as far as its parsers go.

Its options are those of ``llm_api/trtllm_serve.py``. ``serve`` merges them with its file, and hands all to
``launch_server``, which loads the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from tensorrt_llm.commands import trtllm_serve  # type: ignore[import-not-found]
from tensorrt_llm.llmapi.disagg_utils import parse_disagg_config_file  # type: ignore[import-not-found]
from tensorrt_llm.llmapi.llm_args import update_llm_args_with_extra_dict  # type: ignore[import-not-found]

_NOT_OF_THE_API = (
    *("host", "port", "config", "log_level", "free_gpu_memory_fraction", "tool_parser", "server_role"),
    *("metadata_server_config_file", "disagg_cluster_uri", "media_io_kwargs", "chat_template"),
    *("custom_module_dirs", "moe_cluster_parallel_size"),
)


def launch_server(host: str, port: int, llm_args: dict[str, Any], tool_parser: str | None = None) -> None:
    raise AssertionError("a check must not start a server")


def serve(host: str, port: int, config: str | None, tool_parser: str | None, **given: Any) -> None:
    arguments = {name: value for name, value in given.items() if name not in _NOT_OF_THE_API}
    extra = yaml.safe_load(Path(config).read_text()) if config else {}
    launch_server(host, port, update_llm_args_with_extra_dict(arguments, extra), tool_parser)


def disaggregated(config_file: str, **_others: Any) -> None:
    parse_disagg_config_file(config_file)


for _name, _callback in (("serve", serve), ("disaggregated", disaggregated)):
    trtllm_serve.main.commands[_name].callback = _callback
main = trtllm_serve.main
