"""The tables of ``doctor``, and the bundle of ``doctor --on-nodes --bundle``."""

from __future__ import annotations

import getpass
import json
import os
import pwd
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtllm_hpc import __version__
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.report.tables import Table
from trtllm_hpc.runs.node_checks import NodeReport
from trtllm_hpc.tensorrt_llm.memory import MemoryPlan

_STYLES = {"ok": "green", "warn": "yellow", "fail": "red", "unknown": "dim"}
_GIB = 2**30


def checks_table(rows: Sequence[Diagnostic], *, narrow: bool) -> Table:
    """Return a table with a row for each check; if ``narrow``, the hint is below the message."""
    table = Table("check", "outcome", "what was found", *(() if narrow else ("next",)))
    for row in rows:
        below = f"\nnext: {row.hint}" if narrow and row.hint else ""
        beside = () if narrow else (row.hint or "",)
        table.add_row(row.code, (row.state, _STYLES[row.state]), f"{row.message}{below}", *beside)
    return table


def memory_table(plan: MemoryPlan) -> Table:
    """Return a table with the memory plan of one rank."""
    table = Table("memory of one rank", "GiB", "how", right=("GiB",), one_line=("memory of one rank",))
    split = f"tp {plan.parallel.tensor}, pp {plan.parallel.pipeline}"
    steps = f"a step of {plan.step_tokens} tokens; an estimate"
    count = plan.parameters
    number = f"{count / 1e6:.1f} million" if count < 1e9 else f"{count / 1e9:.2f} billion"
    batch = "" if plan.batch is None else f"a batch of {plan.batch}, {plan.beams} beam(s); "
    table.add_row("weights", _gib(plan.weights), f"{number} parameters, {split}")
    table.add_row("activations", f"~{_gib(plan.activations)}", steps)
    table.add_row("logits and decoder", f"~{_gib(plan.logits)}", f"{batch}an estimate")
    table.add_row("context", f"~{_gib(plan.context)}", "libraries and kernels")
    per_token = f"{plan.kv_per_token / 1024:.0f} KiB a token"
    if plan.tokens is None or plan.cache is None:
        table.add_row("KV cache", "-", per_token)
    else:
        requests = "" if plan.requests is None else f", {plan.requests} requests"
        longest = "" if plan.request_tokens is None else f" of {plan.request_tokens}"
        table.add_row("KV cache", _gib(plan.cache), f"{per_token}: {plan.tokens} tokens{requests}{longest}")
    if plan.capacity is not None:
        share = f"the cache gets {plan.fraction:.0%} of what is free after loading"
        table.add_row("all that a rank has", _gib(plan.capacity), share)
    return table


def _gib(size: float) -> str:
    return f"{size / _GIB:.2f}"


_USER, _HOME, _VALUE = "USER", "HOME", "VALUE"
_SHORT = 8
"""Longest value of a variable that is not replaced: numbers, switches and names of interfaces."""


def bundle_text(report: NodeReport, rows: Sequence[Diagnostic]) -> str:
    """Return the bundle as JSON.

    It has no job file, prompts or keys, and of the environment only versions; user name and home are
    replaced.
    """
    record = {
        "trtllm_hpc": __version__,
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "checks": [row.as_json() for row in rows],
        "command_lines": {"programs": report.wanted.programs, "serve": report.wanted.serve},
        "facts": report.facts,
    }
    # Replace values of variables, too: rows quote logs, into which a setup line with `set -x` writes them.
    names = {value: _VALUE for value in report.cluster.environment.values() if len(value) > _SHORT}
    user = pwd.getpwuid(os.getuid())
    homes = {str(Path.home()), user.pw_dir, os.path.realpath(user.pw_dir)} - {"/"}
    names |= {**dict.fromkeys(homes, _HOME), user.pw_name: _USER, getpass.getuser(): _USER}
    longest_first = sorted(names, key=len, reverse=True)
    pattern = "|".join(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])" for name in longest_first)
    return json.dumps(_replaced(record, re.compile(pattern), names), indent=2, ensure_ascii=False) + "\n"


def _replaced(value: Any, pattern: re.Pattern[str], names: dict[str, str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(lambda match: names[match[0]], value)
    if isinstance(value, dict):
        return {
            _replaced(key, pattern, names): _replaced(item, pattern, names) for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_replaced(item, pattern, names) for item in value]
    return value
