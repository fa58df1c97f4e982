"""Upstream's own Python of one release reads what this project renders, without a GPU.

``python -m benchmarks.upstream FOLDER [--jobs 150] [--fitting 200] [--seed 0] [--json]``

FOLDER holds the Python files of TensorRT-LLM (``tensorrt_llm/commands/serve.py`` and the rest). It makes job
files for that release, renders each on three cluster profiles, and gives to upstream's code every
command line of ``trtllm-serve`` with its YAML file, every front's file, and every ``model.yaml`` of Triton's
LLM API model. With ``--fitting N`` the job files are the shipped ones and N of ``init job --gpu``. What
upstream then has of each key must be what the job file says. Where upstream imports what this machine lacks,
it gets a stub (``stubs.py``); no model is loaded.

Then it compares which of a list of configurations upstream refuses with which the project's rules refuse.

The exit code is 1 when upstream refuses a word or a key, has another value, or the rules differ from it;
2 when FOLDER cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

import trtllm_hpc
from benchmarks.arguments import number
from benchmarks.upstream import rendered
from benchmarks.upstream.expected import differences, expected_arguments, unasked
from benchmarks.upstream.jobs import (
    PROFILES,
    Case,
    Job,
    cases,
    fitting_cases,
    left_out,
    merged,
    profile,
    shipped_count,
)
from benchmarks.upstream.refusals import CONFIGURATIONS, STRICTER
from benchmarks.upstream.stubs import GPUS, CannotImport, importable, version_of
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime import upstream
from trtllm_hpc.runtime.upstream import Refused
from trtllm_hpc.tensorrt_llm.releases.release import nearest_release


@dataclass
class Found:
    """What upstream made of all that was rendered."""

    version: str
    """Of TensorRT-LLM."""
    jobs: int = 0
    """Job files."""
    runs: int = 0
    """Run folders rendered of them: each on every profile."""
    left_out: list[str] = field(default_factory=list)
    """Choices for job files with keys that this release is said to lack."""
    command_lines: int = 0
    words: int = 0
    """Words of the command lines."""
    files: int = 0
    """YAML files: of servers, fronts and Triton's model."""
    keys: int = 0
    """Keys of those files, in sections too."""
    compared: int = 0
    """Keys of the job files that were compared with what upstream has."""
    refused: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    rules: list[dict[str, Any]] = field(default_factory=list)
    """Of each configuration of the list, whether upstream and the rules take it."""
    stubs: list[str] = field(default_factory=list)
    """What upstream imports and this machine lacks."""

    @property
    def ok(self) -> bool:
        """Whether nothing was refused or is different, and the rules agree with upstream."""
        return not (self.refused or self.different or self.disagreements)

    @property
    def disagreements(self) -> list[str]:
        """The configurations that only upstream or only the rules take, and not on purpose."""
        differing = [rule for rule in self.rules if (rule["upstream"] is None) != (rule["rules"] is None)]
        return [it["name"] for it in differing if it["rules"] is None or it["name"] not in STRICTER]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        found = _found(arguments.folder, arguments.jobs, arguments.fitting, arguments.seed)
    except CannotImport as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(asdict(found), indent=2) if arguments.json else _table(found))
    return 0 if found.ok else 1


def _found(copy: Path, jobs: int, fitting: int | None, seed: int) -> Found:
    found = Found(version_of(copy))
    found.left_out = left_out(found.version)
    with tempfile.TemporaryDirectory(prefix="trtllm-hpc-upstream-") as folder:
        site = _Site(Path(folder), found.version)
        made = []
        wanted = cases(found.version, shipped_count() if fitting is not None else jobs, seed)
        if fitting is not None:
            wanted += fitting_cases(found.version, fitting, seed, Path(folder))
        for case in wanted:
            found.runs += 1
            try:
                made.append((case, site.render(case)))
            except ConfigError as error:
                reasons = "; ".join(finding.message for finding in error.diagnostics)
                found.refused.append(f"{case.name} on {case.profile}: the rules: {reasons}")
            if case.profile == PROFILES[0]:
                found.jobs += 1
                if (reason := site.refusal(case)) is not None:
                    found.refused.append(f"{case.name}: the rules for {site.known}: {reason}")
        rules = {name: site.rules_on(configuration) for name, configuration in CONFIGURATIONS.items()}
        with importable(copy) as stubbed:
            for case, paths in made:
                _read(case, paths, found)
            for name, configuration in CONFIGURATIONS.items():
                said = site.upstream_on(configuration)
                found.rules.append({"name": name, "upstream": said, "rules": rules[name]})
            found.stubs = sorted(stubbed)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upstream", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="with tensorrt_llm/ in it")
    parser.add_argument(
        "--jobs", type=number, default=150, help="job files to make, each for three profiles (150)"
    )
    parser.add_argument("--fitting", type=number, metavar="N", help="N job files of init job --gpu instead")
    parser.add_argument("--seed", type=int, default=0, help="of the job files")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


class _Site:
    """A folder with the cluster profiles, job files and run folders of the command."""

    def __init__(self, folder: Path, version: str) -> None:
        self._folder = folder
        self.known = nearest_release(version).version
        for name in PROFILES:
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(profile(name, version)))

    def render(self, case: Case) -> RunPaths:
        """Render a job file.

        Raises:
            ConfigError: the rules refuse it.
        """
        job, cluster = self._written(case.job), self._folder / f"{case.profile}.yaml"
        return trtllm_hpc.render(job, cluster, runs=self._folder / "runs", on_warning=lambda _: None).paths

    def rules_on(self, configuration: Mapping[str, Any]) -> str | None:
        """Return why the rules refuse a configuration of the LLM API; ``None``: they take it."""
        job = {
            "name": "rules",
            "model": {"path": "/models/Llama-3.1-8B"},
            "engine": {"backend": "pytorch", "llm_api": configuration},
        }
        return self.refusal(Case("rules", job, PROFILES[-1]))

    def refusal(self, case: Case) -> str | None:
        """Return why the rules for the nearest known release refuse a job file; ``None``: they take it."""
        job = merged(case.job, {"engine": {"tensorrt_llm_version": self.known}})
        try:
            trtllm_hpc.load_job(self._written(job), self._folder / f"{PROFILES[-1]}.yaml")
        except ConfigError as error:
            return "; ".join(finding.message for finding in error.diagnostics)
        return None

    def _written(self, job: Job) -> Path:
        file = self._folder / "job.yaml"
        file.write_text(yaml.safe_dump(job, allow_unicode=True))
        return file

    def upstream_on(self, configuration: Mapping[str, Any]) -> str | None:
        """Return why upstream refuses it; ``None``: upstream takes it."""
        file = self._folder / "llm_api.yaml"
        file.write_text(yaml.safe_dump(configuration))
        words = ("/models/Llama-3.1-8B", f"--gpus_per_node={GPUS}", f"--extra_llm_api_options={file}")
        try:
            upstream.server_arguments(words)
        except Refused as error:
            return " ".join(str(error).split())
        return None


def _read(case: Case, paths: RunPaths, found: Found) -> None:
    """Have upstream read all that was rendered of one job file."""
    files = found.files
    for server in rendered.servers(paths):
        found.command_lines += 1
        found.words += len(server.words)
        arguments = _asked(case, found, upstream.server_arguments, server.words, server.configuration)
        plain = upstream.server_arguments((server.words[0], f"--gpus_per_node={GPUS}"))
        _compare(case, server.role, arguments, plain, found)
    if words := rendered.front_words(paths):
        found.command_lines += 1
        found.words += len(words)
        phases = case.job["serve"]["disaggregated"]
        rendered.write_front_file(paths, {role: phases[role].get("servers", 1) for role in rendered.PHASES})
        file = yaml.safe_load(paths.front_started.read_text())
        _compare_front(case, _asked(case, found, upstream.front_arguments, words, file), found)
    if (configuration := rendered.model_yaml(paths)) is not None:
        del configuration["triton_config"]  # read by Triton's model itself
        arguments = _asked(case, found, upstream.llm_arguments, configuration, configuration)
        plain = upstream.llm_arguments({"model": configuration["model"], "gpus_per_node": GPUS})
        _compare(case, None, arguments, plain, found)
    if found.files == files:
        found.refused.append(f"{case.name} on {case.profile}: nothing was rendered for upstream")


def _asked(
    case: Case, found: Found, ask: Callable[[Any], Any], what: object, file: Mapping[str, Any]
) -> Any | None:
    found.files += 1
    found.keys += _count(file)
    try:
        return ask(what)
    except Refused as error:
        found.refused.append(f"{case.name} on {case.profile}: {' '.join(str(error).split())}")
        return None


def _count(value: object) -> int:
    """Return how many keys a mapping has, with those of its mappings."""
    if not isinstance(value, Mapping):
        return 0
    return len(value) + sum(map(_count, value.values()))


def _compare(case: Case, role: str | None, arguments: Any | None, plain: Any, found: Found) -> None:
    """Compare arguments with what the job file says, and with those of nothing but a model (``plain``)."""
    if arguments is None:
        return
    stated = expected_arguments(case.job, role)
    found.compared += _count(stated)
    wrong = (*differences(stated, arguments), *unasked(stated, arguments, plain))
    found.different += [f"{case.name} on {case.profile}: {each}" for each in wrong]


def _compare_front(case: Case, front: Any | None, found: Found) -> None:
    """Compare servers and router of each phase."""
    if front is None:
        return
    phases = case.job["serve"]["disaggregated"]
    for role, kind, router in (
        ("context", "ctx", front.ctx_router_config),
        ("generation", "gen", front.gen_router_config),
    ):
        seen = {
            "servers": sum(server.type == kind for server in front.server_configs),
            "router": router.type,
        }
        stated = {"servers": phases[role].get("servers", 1), "router": phases.get("router", seen["router"])}
        found.compared += len(stated)
        found.different += [
            f"{case.name} on {case.profile}: {role} {key}: {stated[key]!r} became {seen[key]!r}"
            for key in stated
            if stated[key] != seen[key]
        ]


def _table(found: Found) -> str:
    lines = [
        f"TensorRT-LLM {found.version}",
        f"  {found.jobs:6} job files, {found.runs} runs on {len(PROFILES)} profiles",
        f"  {len(found.left_out):6} choices left out, since this release lacks their keys",
        f"  {found.command_lines:6} command lines of {found.words} words",
        f"  {found.files:6} YAML files of {found.keys} keys",
        f"  {found.compared:6} keys of the job files compared",
        f"  {len(found.refused):6} refused",
        *(f"         {each}" for each in found.refused),
        f"  {len(found.different):6} different",
        *(f"         {each}" for each in found.different),
        f"  {len(found.rules):6} configurations shown to the rules as well",
        *(f"         {_verdict(rule)}" for rule in found.rules),
        f"  {len(found.disagreements):6} on which the rules and upstream differ",
    ]
    return "\n".join(lines)


def _verdict(rule: Mapping[str, Any]) -> str:
    who = {(True, True): "both refuse", (False, False): "both take", (True, False): "ONLY UPSTREAM REFUSES"}
    refused = (rule["upstream"] is not None, rule["rules"] is not None)
    return f"{who.get(refused, 'ONLY THE RULES REFUSE'):22} {rule['name']}"


if __name__ == "__main__":
    raise SystemExit(main())
