"""Every command in the README and on the site parses, and every job file and profile there is valid."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner
from ruamel.yaml import YAML

from tests.docs.blocks import ROOT, Block, all_blocks
from trtllm_hpc.cli import command
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.files import read_job
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import ConfigError, ExitCode

PROGRAM = re.compile(r"(?:^|[|;&(]|\bthen |! )\s*(?:\w+=\S+ )*trtllm-hpc (.*)")
"""A call of the program in a line of shell."""
CHECKED = (click.Choice, click.types.IntParamType, click.types.FloatParamType)
"""Types of options whose values need no file."""
COMMANDS = [
    (f"{block.page}:{block.line}", line)
    for block in all_blocks("console")
    for line in block.commands()
    if PROGRAM.search(line)
]


def words(line: str) -> list[str]:
    """Return the words of the line's call of the program: up to a comment, a pipe or the next command."""
    found = PROGRAM.search(line)
    assert found is not None
    lexer = shlex.shlex(found[1], posix=True, punctuation_chars="|;&<>()")
    lexer.whitespace_split = True
    taken: list[str] = []
    for word in lexer:
        if word and set(word) <= set("|;&<>()"):
            break
        taken.append(word)
    return taken


def parsed(group: click.Group, arguments: list[str], parent: click.Context | None) -> None:
    """Parse the words as the program does, without running it; files need not exist."""
    context = click.Context(group, info_name="trtllm-hpc", parent=parent)
    if parent is not None:
        group.parse_args(context, arguments)
        arguments = [*context._protected_args, *context.args]
        if not arguments:
            assert group.invoke_without_command or group.no_args_is_help
            return
    name, found, rest = group.resolve_command(context, arguments)
    assert found is not None
    if isinstance(found, click.Group):
        parsed(found, rest, context)
        return
    inner = click.Context(found, info_name=name, parent=context)
    values, left, _ = found.make_parser(inner).parse_args(rest)
    assert left == [], f"too many words: {left}"
    for parameter in found.params:
        given = values.get(parameter.name)
        if isinstance(parameter, click.Argument) and parameter.required:
            assert isinstance(given, str | tuple), f"without {parameter.human_readable_name}"
        if isinstance(given, str) and isinstance(parameter.type, CHECKED):
            kind: click.ParamType[Any] = parameter.type
            kind.convert(given, parameter, inner)


def test_every_command_parses() -> None:
    wrong = []
    for place, line in COMMANDS:
        try:
            parsed(command, words(line), None)
        except click.ClickException as error:
            wrong.append(f"{place}: {line}: {error.format_message()}")
    assert len(COMMANDS) > 200 and wrong == []


STARTS_A_JOB = re.compile(r"trtllm-hpc .*(\bsubmit\b|\bresume\b|--on-nodes)")
# tests/runs/test_lock.py repeats runs, tests/slurm/test_sweep.py resumes sweeps.
RUN_BY_A_TEST = re.compile(r"--cluster (sandbox|local)\b|submit (runs/|lock\.json)|sweep resume")


def unmarked(block: Block) -> list[str]:
    """Return the commands that start a job which no test can start, in a block that does not say so."""
    jobs = [line for line in block.commands() if STARTS_A_JOB.search(line) and not RUN_BY_A_TEST.search(line)]
    return [] if "needs GPUs" in block.text else jobs


def test_a_job_that_no_test_starts_is_marked_as_needing_gpus() -> None:
    # The tutorial's commands are typed by tests/slurm/test_tutorial.py; cli.md is the commands' own help.
    others = ("docs/tutorial/demo-cluster.md", "docs/reference/cli.md")
    found = {f"{it.page}:{it.line}": unmarked(it) for it in all_blocks("console") if it.page not in others}
    assert {place: lines for place, lines in found.items() if lines} == {}
    assert unmarked(Block("page", 1, "console", "$ trtllm-hpc submit job.yaml --cluster mysite\n"))


def section_of(block: Block) -> Any:
    return YAML(typ="safe").load(block.text)


YAML_BLOCKS = [block for block in all_blocks("yaml") if isinstance(section_of(block), dict)]


def refusal(content: dict[str, Any], file: Path) -> str:
    """Return why a job file or a profile, or a part of one, is wrong; empty if it is not."""
    whole: dict[str, Any] = {"name": "of-a-page", "model": {"path": "/models/m"}}
    try:
        if "extends" in content:
            read_job(file)
        elif set(content) <= set(JobFile.model_fields):
            JobFile.model_validate(whole | content)
        else:
            ClusterProfile.model_validate({"name": "of-a-page"} | ClusterProfile.with_defaults(content))
    except (ValueError, ConfigError) as error:
        return str(error)
    return ""


def test_every_job_file_and_profile_is_valid(tmp_path: Path) -> None:
    wrong = {}
    for block in YAML_BLOCKS:
        (tmp_path / "job.yaml").write_text(block.text)
        wrong[f"{block.page}:{block.line}"] = refusal(section_of(block), tmp_path / "job.yaml")
    assert len(wrong) > 20 and {place: why for place, why in wrong.items() if why} == {}
    assert "extra" in refusal({"serve": {"nods": 2}}, tmp_path / "job.yaml").lower()


def test_every_exit_code_is_on_its_page() -> None:
    page = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^\| (\d+) \|", page) == [str(int(code)) for code in ExitCode]


def test_the_table_of_models_is_what_the_shipped_job_files_say() -> None:
    page = (ROOT / "docs" / "how-to" / "model-on-gpu.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| [^|]+ \| (\d+ [^|]+) \| `([\w.-]+)` \|$", page)
    listed = json.loads(CliRunner().invoke(command, ["jobs", "list", "--json"]).stdout)
    on_pytorch = [job for job in listed if job["backend"] == "pytorch"]
    shipped = {job["name"]: f"{job['gpus']} {job['gpu_types']}" for job in on_pytorch}
    assert {name: re.sub(r" on \w+ nodes$", "", gpus) for gpus, name in rows} == shipped
