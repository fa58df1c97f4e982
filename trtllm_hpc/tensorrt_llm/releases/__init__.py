"""Facts about the releases of TensorRT-LLM: containers, commands, options, defaults.

The facts are TOML files in ``data/``, each with its source; docs/releases.md tells how to read and extend
them. Nothing is read before it is asked for.
"""

from __future__ import annotations

from trtllm_hpc.tensorrt_llm.releases.images import find_release, release_of_tag, release_of_version
from trtllm_hpc.tensorrt_llm.releases.load import COMMANDS, commands_of, releases, releases_with
from trtllm_hpc.tensorrt_llm.releases.model import (
    Command,
    ContainerPaths,
    Option,
    OptionHistory,
    Release,
    UnknownRelease,
)

__all__ = [
    "COMMANDS",
    "Command",
    "ContainerPaths",
    "Option",
    "OptionHistory",
    "Release",
    "UnknownRelease",
    "commands_of",
    "find_release",
    "release_of_tag",
    "release_of_version",
    "releases",
    "releases_with",
]
