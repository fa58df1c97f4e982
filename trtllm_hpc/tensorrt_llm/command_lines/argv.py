"""An option and its value as words of a command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtllm_hpc.tensorrt_llm.command_lines.option_request import SILENT
from trtllm_hpc.tensorrt_llm.releases import Option


def words(option: Option, value: Any) -> tuple[str, ...] | None:
    """The words that say ``value``; ``None`` if the option does not take it.

    A flag that is to be off is said by leaving it out.
    """
    if value is SILENT:
        return ()
    if option.form == "flag":
        return _flag(option, value)
    if option.form == "list":
        items = [value] if isinstance(value, str) or not isinstance(value, Sequence) else list(value)
        return (option.name, *map(str, items)) if items and _taken(option, items) else None
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool):
        value = "enable" if value else "disable"
        if option.form != "switch" and value not in option.choices:
            return None
    if not isinstance(value, (str, int, float)):
        return None
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return (option.name, text) if _taken(option, [text]) else None


def _flag(option: Option, value: Any) -> tuple[str, ...] | None:
    if not isinstance(value, bool):
        return None
    if value:
        return (option.name,)
    return () if not option.default else None


def _taken(option: Option, items: Sequence[Any]) -> bool:
    choices = option.choices or (("enable", "disable") if option.form == "switch" else ())
    return not choices or all(str(item) in choices for item in items)
