"""``trtllm-hpc versions``: what the releases of TensorRT-LLM have."""

from __future__ import annotations

import click

from trtllm_hpc.cli.listing import print_listing
from trtllm_hpc.report.formatting import NONE
from trtllm_hpc.report.versions import print_command, print_release
from trtllm_hpc.tensorrt_llm.releases.commands import COMMANDS, Command
from trtllm_hpc.tensorrt_llm.releases.release import (
    Release,
    UnknownRelease,
    find_release,
    image_of_tag,
    no_program,
    release_of_version,
    releases,
    tag_of_image,
)


@click.group(invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Show what the releases of TensorRT-LLM have.

    Without a sub-command it lists the releases and the containers that carry
    them. A RELEASE is a version, a Triton tag (24.12) or the name of an image.

    \b
    Examples:
      trtllm-hpc versions
      trtllm-hpc versions show 24.12
      trtllm-hpc versions show 0.16 trtllm-build
    """
    if context.invoked_subcommand is not None:
        return
    print_listing(
        releases(),
        {
            "release": lambda row: row.version,
            "containers": lambda row: ", ".join(row.tags) or NONE,
            "TensorRT": lambda row: row.tensorrt or NONE,
            "Python": lambda row: row.python or NONE,
            "CUDA": lambda row: row.cuda or NONE,
            "builds with": lambda row: " + ".join(row.builds_with),
            "backends": lambda row: ", ".join(row.backends),
        },
        optional=("builds with", "CUDA", "TensorRT", "Python"),
    )


@command.command()
@click.argument("release")
@click.argument("program", required=False, metavar="[PROGRAM]")
@click.option(
    "--family",
    metavar="NAME",
    default="llama",
    show_default=True,
    help="Family of models, for build.py and convert_checkpoint.py.",
)
def show(release: str, program: str | None, family: str) -> None:
    """Show what RELEASE has: its programs, or the options of one PROGRAM.

    With a PROGRAM it lists each option with its default, defaults that differ
    between releases, and the options that only other releases have.

    \b
    Examples:
      trtllm-hpc versions show 0.16
      trtllm-hpc versions show 24.04 trtllm-build
      trtllm-hpc versions show 0.16 convert_checkpoint.py --family gpt
    """
    chosen = _release(release)
    if program is None:
        print_release(chosen)
    else:
        print_command(_program(chosen, program, family))


def _program(release: Release, name: str, family: str) -> Command:
    """Return one of upstream's programs. Raises click.UsageError if the release does not have it."""
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        raise click.UsageError(f"no program of upstream's is called {name!r}, only {known}.")
    program = release.command(name, family)
    if program is None:
        raise click.UsageError("; ".join(filter(None, no_program(release, name, family))))
    return program


def _release(word: str) -> Release:
    """Return the release with this version, Triton tag or image name; raises UnknownRelease."""
    image = image_of_tag(word) or (word if tag_of_image(word) else None)
    try:
        return release_of_version(word) or find_release(image, None if image else word)
    except UnknownRelease as error:
        error.hint = "trtllm-hpc versions"
        raise
