"""Rules of the programs that build an engine."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

from trtllm_hpc.config.diagnostics import (
    Diagnostics,
    in_cluster,
    in_job,
    nearest,
    placeholder_problems,
)
from trtllm_hpc.config.validate import UnknownValueError
from trtllm_hpc.engines.build_steps import OWN_FOLDERS, OWN_NUMBERS
from trtllm_hpc.engines.command_lines.raw_options import raw_problems
from trtllm_hpc.engines.facts import EngineFacts
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.tensorrt_llm.releases.families import families

NOWHERE = ", and no release that is known here does"
"""How a refusal ends where no release has an option for the key; another program may do the same."""


def family_is_known(facts: EngineFacts) -> Diagnostics:
    """The model's family is known from its config.json or model.family."""
    job = facts.job
    if facts.release is None or facts.family is not None or not facts.builds_engine or job.model.path is None:
        return
    config, stated = facts.model_config, job.model.family
    hint = f"set it to one of {', '.join(families())}, or write upstream's commands into build.commands"
    if stated is not None:
        near = nearest(stated, families())
        message = f"no programs are known for the family {stated}"
        hint = f"did you mean {near}? {hint}" if near else hint
        yield in_job("bad-value", "model.family", message, hint, stated)
    elif config is None:
        message = f"the model's {job.model.path}/config.json cannot be read here, so nothing tells its family"
        hint = "correct the path; if only the nodes see it, set model.family (--set model.family=llama)"
        yield in_job("unreadable", "model.path", message, hint, job.model.path)
    else:
        message = "is needed here, since the model's config.json names no architecture"
        if named := config.get("architectures"):
            message = f"no programs are known for the architecture {named[0]} of the model's config.json"
        yield in_job("missing", "model.family", message, hint)


def toolchain_exists(facts: EngineFacts) -> Diagnostics:
    """The release has programs that build an engine of such a model."""
    if facts.no_toolchain is not None:
        for problem in facts.no_toolchain.diagnostics:
            yield _with_first_able(problem, facts)


def examples_are_known(facts: EngineFacts) -> Diagnostics:
    """The folder of upstream's conversion programs is known."""
    release = facts.release
    is_named = any("{examples}" in word for command in facts.job.build.commands for word in command)
    if release is None or facts.examples_folder is not None or not (facts.toolchain or is_named):
        return
    message = f"where upstream's examples are in the container of TensorRT-LLM {release.version} is not known"
    hint = f"clone TensorRT-LLM v{release.version} and set it to the clone's folder 'examples'"
    yield in_cluster("missing", "container.examples", message, hint)


def keys_have_options(facts: EngineFacts) -> Diagnostics:
    """The release's programs have options for every key of the engine."""
    if facts.command_lines is None:
        return
    first: dict[str, Diagnostic] = {}
    for problem in facts.command_lines.problems:
        first.setdefault(problem.field, problem)  # all options of one key fail for the same reason
    for problem in first.values():
        yield _with_first_able(problem, facts)


def _with_first_able(problem: Diagnostic, facts: EngineFacts) -> Diagnostic:
    """The problem, its hint with the first release that builds the engine as the job file has it."""
    able = None
    if problem.code == "release":
        with suppress(UnknownValueError):  # a wrong value of another key must not hide this problem
            able = facts.first_able
    if able is None or re.search(rf"{re.escape(able.version)}(?![.\d])", f"{problem.message} {problem.hint}"):
        return problem
    said = f"the first release that builds this engine is {able.version}"
    hint = f"{problem.hint}; {said}" if problem.hint else said
    return replace(problem, message=problem.message.removesuffix(NOWHERE), hint=hint)


def raw_options_are_taken(facts: EngineFacts) -> Diagnostics:
    """Extra options exist in the release, and no key sets them."""
    if facts.toolchain is not None:
        yield from raw_problems(facts.job, facts.toolchain)


def own_commands_are_whole(facts: EngineFacts) -> Diagnostics:
    """Commands of the job file write an engine, with placeholders that are known."""
    commands = facts.job.build.commands
    for number, words in enumerate(commands):
        field = f"build.commands[{number}]"
        yield from placeholder_problems(field, words, (*OWN_FOLDERS, *OWN_NUMBERS, "examples"))
        for place, word in enumerate(words):
            inside = next((name for name in OWN_FOLDERS if f"{{{name}}}" in word[1:]), None)
            if inside is not None and f"{{{{{inside}}}}}" not in word:
                message = f"{{{inside}}} stands for a folder, and must be the beginning of its word"
                hint = f'write the option and its folder as two words, e.g. "--folder", "{{{inside}}}"'
                yield in_job("bad-value", f"{field}[{place}]", message, hint, word)
    if commands and not any("{output}" in word for word in commands[-1]):
        message = "the last command has no {output}, the folder of the engine"
        yield in_job("missing", "build.commands", message, 'add it, e.g. "--output_dir", "{output}"')


RULES = (
    *(family_is_known, toolchain_exists, examples_are_known, keys_have_options, raw_options_are_taken),
    own_commands_are_whole,
)
