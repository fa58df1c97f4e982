"""``trtllm-hpc completion``: the completion script for a shell."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, get_completion_class

_INSTALLATION = {
    "bash": (
        'To complete in this shell:   eval "$(trtllm-hpc completion bash)"',
        "To complete in every shell, add that line to ~/.bashrc.",
    ),
    "zsh": (
        'To complete in this shell:   eval "$(trtllm-hpc completion zsh)"',
        "To complete in every shell, add that line to ~/.zshrc, after compinit.",
    ),
    "fish": (
        "To complete in this shell:   trtllm-hpc completion fish | source",
        "In every shell:              "
        "trtllm-hpc completion fish > ~/.config/fish/completions/trtllm-hpc.fish",
    ),
}


@click.command("completion")
@click.argument("shell", type=click.Choice([*_INSTALLATION]))
def command(shell: str) -> None:
    """Print the completion script for SHELL, and how to install it.

    The shell then completes commands, options, profiles, job files, runs, sweeps and
    measurements.

    \b
    Examples:
      trtllm-hpc completion bash
      eval "$(trtllm-hpc completion bash)"
    """
    found = get_completion_class(shell)
    assert found is not None
    script = found(click.get_current_context().find_root().command, {}, "trtllm-hpc", "_TRTLLM_HPC_COMPLETE")
    # BashComplete.source() would run bash to check its version.
    text = (
        script.source_template % script.source_vars() if isinstance(script, BashComplete) else script.source()
    )
    click.echo(text.rstrip("\n"))
    # At the end, where a terminal shows them; the first line of zsh's script must stay the first.
    for line in _INSTALLATION[shell]:
        click.echo(f"# {line}")
