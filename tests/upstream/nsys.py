"""A stand-in for Nsight Systems' ``nsys profile``: refuses options it does not know, and leaves a report.

The report has the command line and the variables that start and stop the profiler. The program then takes
this one's place. Options: those that upstream's scripts and NVIDIA's User Guide have (2024.6).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

OPTIONS = {
    "--output": None,
    "--force-overwrite": ("true", "false"),
    "--trace": None,
    "--capture-range": ("none", "cudaProfilerApi", "hotkey", "nvtx"),
    "--capture-range-end": ("none", "stop", "stop-shutdown"),
    "--cuda-graph-trace": ("graph", "node"),
    "--trace-fork-before-exec": ("true", "false"),
}
TRACES = {"cuda", "nvtx", "osrt", "cublas", "cudnn", "python-gil", "none"}


def main(words: list[str]) -> None:
    """Check the options, leave the report, and become the program."""
    if words[:1] != ["profile"]:
        sys.exit(f"nsys: unknown command {words[:1]}")
    given: dict[str, str] = {}
    place = 1
    while words[place].startswith("-"):
        name, _, value = words[place].partition("=")
        choices = OPTIONS.get(name, ())
        if choices is not None and value not in choices:
            sys.exit(f"unrecognised option '{words[place]}'")
        given[name] = value
        place += 1
    if not TRACES.issuperset(given["--trace"].split(",")):
        sys.exit(f"Illegal --trace argument '{given['--trace']}'.")
    variables = {name: value for name, value in os.environ.items() if name.startswith("TLLM_")}
    report = {"program": words[place:], "options": given, "environment": variables}
    Path(f"{given['--output']}.nsys-rep").write_text(json.dumps(report), encoding="utf-8")
    os.execvp(words[place], words[place:])


if __name__ == "__main__":
    main(sys.argv[1:])
