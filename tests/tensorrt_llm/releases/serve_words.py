"""Command lines of ``trtllm-serve``, compared with what a release takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from trtllm_hpc.tensorrt_llm.releases.release import Release


def refused_words(release: Release, words: Sequence[str]) -> list[str]:
    """Return the options of a command line that the release lacks, or whose value it does not take.

    Options are written ``--name=value``; whatever stands before ``trtllm-serve`` is skipped.
    """
    serve = release.program("trtllm-serve")
    assert serve is not None, f"{release.version} has no trtllm-serve"
    names = [PurePosixPath(word).name for word in words]
    first, *others = words[names.index("trtllm-serve") + 1 :]
    command = serve.subcommands.get(first, serve)
    refused = []
    for word in others:
        name, _, value = word.partition("=")
        option = command.find(name)
        if option is None or (option.choices and value not in option.choices):
            refused.append(word)
    required = [option.name for option in command.options.values() if option.required]
    return refused + [name for name in required if not any(word.startswith(f"{name}=") for word in others)]
