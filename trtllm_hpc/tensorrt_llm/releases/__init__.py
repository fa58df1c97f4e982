"""Facts about the releases of TensorRT-LLM: containers, commands, options, defaults.

The facts are TOML files in ``data/``, each with its source; docs/releases.md describes how to read and
extend them. No file is read before one of its facts is needed.
"""

from __future__ import annotations

from trtllm_hpc.tensorrt_llm.releases.commands import (
    COMMANDS,
    Command,
    Option,
    OptionHistory,
    commands_of,
    quantized_file,
    quantizes,
    releases_with,
)
from trtllm_hpc.tensorrt_llm.releases.release import (
    Release,
    UnknownRelease,
    find_release,
    nearest_release,
    release_of_version,
    releases,
    version_of_image,
)

__all__ = [
    "COMMANDS",
    "Command",
    "Option",
    "OptionHistory",
    "Release",
    "UnknownRelease",
    "commands_of",
    "find_release",
    "nearest_release",
    "quantized_file",
    "quantizes",
    "release_of_version",
    "releases",
    "releases_with",
    "version_of_image",
]
