"""The file that ``doctor --on-nodes --bundle`` writes: what was found, to attach to an issue."""

from __future__ import annotations

import getpass
import json
import os
import pwd
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trtllm_hpc import __version__
from trtllm_hpc.runs.node_checks import NodeReport
from trtllm_hpc.validation.checks import CheckRow

_USER, _HOME, _VALUE = "USER", "HOME", "VALUE"
_SHORT = 8
"""Values of variables up to this length are numbers, switches and names of interfaces."""


def bundle_text(report: NodeReport, rows: Sequence[CheckRow], *, with_names: bool) -> str:
    """Return the bundle as JSON: no job file, no prompt, no key, no environment but versions.

    Args:
        with_names: keep the user's name and home folder, which are replaced otherwise.
    """
    record = {
        "trtllm_hpc": __version__,
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "checks": [asdict(row) for row in rows],
        "command_lines": {"programs": report.wanted.programs, "serve": report.wanted.serve},
        "facts": report.facts,
    }
    # Rows quote logs, and a setup line with `set -x` writes variables into them.
    names = {value: _VALUE for value in report.cluster.environment.values() if len(value) > _SHORT}
    if not with_names:
        user = pwd.getpwuid(os.getuid())
        homes = {str(Path.home()), user.pw_dir, os.path.realpath(user.pw_dir)} - {"/"}
        names |= {**dict.fromkeys(homes, _HOME), user.pw_name: _USER, getpass.getuser(): _USER}
    longest_first = sorted(names, key=len, reverse=True)
    pattern = "|".join(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])" for name in longest_first)
    record = _replaced(record, re.compile(pattern), names) if names else record
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


def _replaced(value: Any, pattern: re.Pattern[str], names: dict[str, str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(lambda match: names[match[0]], value)
    if isinstance(value, dict):
        return {
            _replaced(key, pattern, names): _replaced(each, pattern, names) for key, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_replaced(each, pattern, names) for each in value]
    return value
