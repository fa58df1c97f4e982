"""A group of commands whose first is the default: ``bench latest`` is ``bench run latest``."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import click

from trtllm_hpc.cli import LazyGroup
from trtllm_hpc.errors import TrtllmHpcError

_FIRST_WORD = "trtllm_hpc.first_word"
"""Where click's context keeps the first word if it is not a command."""
_CUTOFF = 0.65
"""The similarity from which on a word is a mistyped command; ``latest`` and ``list`` have 0.6."""


class DefaultGroup(LazyGroup):
    """A group whose command ``run`` may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``bench latest --rate 4`` as ``bench run latest --rate 4``."""
        if not args and ctx.resilient_parsing:
            return super().parse_args(ctx, args)  # for shell completion, which offers commands, too
        if not args or (args[0] not in self.lines and args[0] not in ctx.help_option_names):
            ctx.meta[_FIRST_WORD] = args[:1]
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; suggest one if its name was mistyped."""
        try:
            return super().invoke(ctx)
        except TrtllmHpcError as error:
            [word] = ctx.meta.get(_FIRST_WORD) or [""]
            near = get_close_matches(word, self.lines, n=1, cutoff=_CUTOFF)
            if not near or word not in error.message:
                raise
            error.message += f" Did you mean the command {near[0]!r}?"
            error.hint = f"{ctx.command_path} {near[0]}"
            raise

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both forms."""
        formatter.write_usage(ctx.command_path, f"{self._argument.make_metavar(ctx)} [OPTIONS]")
        formatter.write_usage(ctx.command_path, "COMMAND [ARGS]...", prefix=" " * len("Usage: "))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of ``run``, and then the commands."""
        self._default.format_options(click.Context(self._default, ctx, "run"), formatter)
        self.format_commands(ctx, formatter)

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Offer the commands, and what may follow the default one."""
        if incomplete.startswith("-"):
            return self._default.shell_complete(click.Context(self._default, ctx, "run"), incomplete)
        offered = super().shell_complete(ctx, incomplete) + self._argument.shell_complete(ctx, incomplete)
        return sorted(offered, key=lambda item: item.type != "file")  # see complete_with

    @property
    def _default(self) -> click.Command:
        command = self.get_command(click.Context(self), "run")
        assert command is not None
        return command

    @property
    def _argument(self) -> click.Parameter:
        return next(it for it in self._default.params if isinstance(it, click.Argument))
