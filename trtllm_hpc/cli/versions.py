"""``trtllm-hpc versions``: releases of TensorRT-LLM, with their programs and options."""

from __future__ import annotations

import click

from trtllm_hpc.cli.shared import json_option, print_json, print_listing
from trtllm_hpc.report.formatting import NONE
from trtllm_hpc.report.versions import print_program, print_release
from trtllm_hpc.tensorrt_llm.releases.programs import PROGRAM_FILES, Program, releases_with
from trtllm_hpc.tensorrt_llm.releases.release import (
    UnknownRelease,
    find_release,
    image_of_tag,
    release_of_version,
    releases,
    tag_of_image,
)


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List the releases of TensorRT-LLM, and the containers that have them.

    \b
    Examples:
      trtllm-hpc versions
      trtllm-hpc versions show 24.12
      trtllm-hpc versions show 0.16 trtllm-build
    """
    if context.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError(f"Write --json after {context.invoked_subcommand!r}.")
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
        as_json=as_json,
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
    help="Model family, for build.py and convert_checkpoint.py.",
)
@json_option
def show(release: str, program: str | None, family: str, as_json: bool) -> None:
    """Show the programs of a release, or the options of a program.

    RELEASE is a version, a Triton tag (24.12) or the name of an image.

    \b
    Examples:
      trtllm-hpc versions show 0.16
      trtllm-hpc versions show 24.04 trtllm-build
      trtllm-hpc versions show 0.16 convert_checkpoint.py --family gpt
    """
    image = image_of_tag(release) or (release if tag_of_image(release) else None)
    try:
        chosen = release_of_version(release) or find_release(image, None if image else release)
    except UnknownRelease as error:
        error.hint = "trtllm-hpc versions"
        raise
    if program is not None and program not in PROGRAM_FILES:
        known = ", ".join(PROGRAM_FILES)
        raise click.UsageError(f"there is no program {program!r}, only {known}.")
    found = chosen if program is None else chosen.program(program, family)
    if found is None and program is not None:
        others = releases_with(program, family)
        elsewhere = f": releases {others[0]} to {others[-1]} have it" if others else ""
        raise click.UsageError(f"TensorRT-LLM {chosen.version} has no {program} for {family}{elsewhere}.")
    if as_json:
        print_json(found)
    elif isinstance(found, Program):
        print_program(found)
    else:
        print_release(chosen)
