"""The tutorial: every command of the page, typed in one shell on a sandbox, prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks
from tests.sharing import sandbox_name
from trtllm_hpc.sandbox import Sandbox

pytestmark = [pytest.mark.slurm, pytest.mark.thorough, pytest.mark.timeout(900)]

PAGE = ROOT / "docs" / "tutorial" / "demo-cluster.md"
END = "== end of command"
SHELL = """\
exec 2>&1
trtllm-hpc() {{
  if [ "$1" = sandbox ]; then set -- "$@" --name {name}; fi
  command trtllm-hpc "$@"
}}
"""


def steps(name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of the page with the lines that it is shown to print."""
    for block in blocks(PAGE):
        if block.kind != "console":
            continue
        for typed in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, *shown = typed.rstrip("\n").split("\n")
            named = [re.sub(r"\bdefault\b", name, line) for line in (command, *shown)]
            yield named[0], [line for line in named[1:] if line != "..."]


def pattern(line: str) -> str:
    """Return what a shown line stands for: words as they are, any rule, any figure and any id."""
    words = [".*" if re.search(r"\d", word) else re.escape(re.sub("─+", "─", word)) for word in line.split()]
    return r"\s*".join(["", *words])


@pytest.fixture
def shell() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A shell in a folder that the nodes see, whose sandbox has a name of its own."""
    name = sandbox_name("tutorial")
    with tempfile.TemporaryDirectory(prefix="trtllm-hpc-test-", dir="/var/tmp") as folder:
        profile = Path(folder) / "profile.yaml"
        shipped = (ROOT / "slurm" / "sandbox.yaml").read_text(encoding="utf-8")
        profile.write_text(shipped.replace("/default/", f"/{name}/"), encoding="utf-8")
        program = Path(sys.executable).parent
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("TRTLLM_HPC_")},
            "PATH": f"{program}:{os.environ['PATH']}",
            "TRTLLM_HPC_CLUSTER": str(profile),
        }
        bash = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        try:
            with bash:
                yield name, bash
                bash.kill()
        finally:
            Sandbox(name).down()


def test_every_command_prints_what_the_page_shows(shell: tuple[str, subprocess.Popen[str]]) -> None:
    name, bash = shell
    assert bash.stdin is not None and bash.stdout is not None
    bash.stdin.write(SHELL.format(name=name))
    for command, shown in steps(name):
        began = time.monotonic()
        bash.stdin.write(f'{command}\necho "{END} $?"\n')
        bash.stdin.flush()
        printed: list[str] = []
        for line in bash.stdout:
            if line.startswith(END):
                break
            printed.append(line.rstrip("\n"))
        text = "\n".join(printed)
        print(f"$ {command}    # {time.monotonic() - began:.1f} s\n{text}")
        assert line == f"{END} 0\n", f"{command}: {line}\n{text}"
        missing = [each for each in shown if not any(re.match(pattern(each), other) for other in printed)]
        assert missing == [], f"{command} did not print {missing}\n{text}"
