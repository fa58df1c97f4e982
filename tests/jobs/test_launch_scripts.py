"""Launch scripts that others have published: what a job file and a profile make of every word of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.model import Plan, make_plan
from trtllm_hpc.render.scripts import render_scripts
from trtllm_hpc.validation.load import load

SCRIPTS: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("launch_scripts.yaml").read_text())


def words_of(command: str) -> list[str]:
    """The words of a command line, also those within its words; ``--option=value`` is two."""
    words = [part for word in shlex.split(command) for part in (words_of(word) if " " in word else [word])]
    return [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]


def said(script: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Everything that a script says, with its kind: of commands each option with its values."""
    for command in script["server"]:
        for option in re.split(r" (?=-)", " ".join(words_of(command))):
            yield "server", option
    for kind in ("mounts", "container", "sbatch", "lines"):
        yield from ((kind, word) for word in script.get(kind, ()))
    yield from (("exports", f"{name}={value}") for name, value in script.get("exports", {}).items())


def commands_of(plan: Plan) -> list[str]:
    """The command lines of all servers, and of the front."""
    front = [] if plan.front is None else [list(plan.front.command)]
    specs = [server.spec for server in plan.servers]
    lines = [[spec.launcher or "", *words] for spec in specs for words in (spec.leader, spec.worker or [])]
    return [f" {' '.join(words_of(shlex.join(line)))} " for line in lines + front]


def is_rendered(kind: str, word: str, plan: Plan) -> bool:
    """Whether something stands in the scripts, or in the command lines and variables of the servers."""
    if kind == "server":
        model = plan.server.spec.model or ""
        return any(f" {word.replace('{model}', model)} " in command for command in commands_of(plan))
    scripts = "\n".join(render_scripts(plan).values())
    if kind == "sbatch":
        return word in scripts.split()
    variables = [f"{name}={value}" for it in plan.servers for name, value in it.spec.environment.items()]
    return word in variables or any(word in text for text in (scripts, *commands_of(plan)))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script["script"].partition(",")[0])
def test_every_word_is_rendered_or_has_a_key_instead(script: dict[str, Any], tmp_path: Path) -> None:
    for name in ("job", "profile"):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(script[name]), encoding="utf-8")
    facts = load(tmp_path / "job.yaml", str(tmp_path / "profile.yaml"))
    plan = make_plan(facts, RunPaths("/runs/r"), "python3")
    instead, left = script.get("instead", {}), script.get("left", {})
    unsaid = {word for kind, word in said(script) if not is_rendered(kind, word, plan)}
    assert unsaid == {*instead, *left}
    for key in instead.values():
        root = facts if key.startswith("cluster.") else facts.job
        assert reduce(getattr, key.split("."), root) is not None, key
