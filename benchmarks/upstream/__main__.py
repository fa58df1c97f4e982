"""Check rendered command lines and files with upstream's own parsers, without a GPU.

``python -m benchmarks.upstream FOLDER [--jobs 150] [--fitting 200] [--seed 0] [--json]``

FOLDER contains the Python files of a TensorRT-LLM release (``tensorrt_llm/commands/serve.py`` and the rest).
The benchmark makes job files for this release, renders each on three cluster profiles, and passes to
upstream's code every command line of ``trtllm-serve`` with its YAML file, every file of the disaggregated
front server, and every ``model.yaml`` of Triton's LLM API model. With ``--fitting N``, the job files are the
shipped ones and N job files of ``init job --gpu``. For each key, the value that upstream reads must be the
value in the job file. A stub (``stubs.py``) replaces each module that upstream imports and that this machine
lacks; no model is loaded.

The benchmark also checks that upstream and the project's rules refuse the same configurations of a list
(``configurations.yaml``).

The exit code is 1 if upstream refuses a word or a key, reads another value, or disagrees with the rules;
2 if FOLDER cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import trtllm_hpc
from benchmarks.upstream import rendered
from benchmarks.upstream.expected import differences, expected_arguments, unasked
from benchmarks.upstream.jobs import PROFILES, Case, Job, cases, fitting_cases, left_out, merged, profile
from benchmarks.upstream.stubs import GPUS, CannotImport, importable, version_of
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.node_checks import image as upstream
from trtllm_hpc.runtime.node_checks.image import RefusedByUpstream
from trtllm_hpc.tensorrt_llm.releases.release import nearest_release

_LISTS = yaml.safe_load((Path(__file__).parent / "configurations.yaml").read_text())
CONFIGURATIONS: list[Job] = _LISTS["configurations"]
STRICTER: list[Job] = _LISTS["stricter"]


@dataclass
class Found:
    """Results of all checks."""

    version: str
    """Version of TensorRT-LLM."""
    counts: Counter[str] = field(default_factory=Counter)
    """Numbers of runs, job files, command lines, words, files, keys and compared values."""
    left_out: list[str] = field(default_factory=list)
    """Choices that no job file has, because the project's data list none of their keys for this release."""
    refused: list[str] = field(default_factory=list)
    """Cases that the rules or upstream refuse, with the reason."""
    different: list[str] = field(default_factory=list)
    """Cases in which upstream reads another value than the job file's."""
    rules: dict[str, str] = field(default_factory=dict)
    """Who refuses each configuration of the list."""
    stubs: list[str] = field(default_factory=list)
    """Modules that upstream imports and this machine lacks."""

    @property
    def disagreements(self) -> list[str]:
        """The configurations that only upstream or only the rules refuse, except intended differences."""
        on_purpose = {(_name(configuration), "ONLY THE RULES REFUSE") for configuration in STRICTER}
        return [name for name, who in self.rules.items() if who.isupper() and (name, who) not in on_purpose]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upstream", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder that contains tensorrt_llm/")
    parser.add_argument("--jobs", type=int, default=150, help="number of job files, each on three profiles")
    parser.add_argument(
        "--fitting", type=int, metavar="N", help="check N job files of init job --gpu instead"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random choices")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="trtllm-hpc-upstream-") as folder:
            version = version_of(arguments.folder)
            if arguments.fitting is not None:
                wanted = fitting_cases(version, arguments.fitting, arguments.seed, Path(folder))
            else:
                wanted = cases(version, arguments.jobs, arguments.seed)
            found = _Reading(Path(folder), version).of(wanted, arguments.folder)
    except CannotImport as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(vars(found), indent=2) if arguments.json else _table(found))
    return 1 if found.refused or found.different or found.disagreements else 0


class _Reading:
    """Renders job files in a folder, and checks the results with upstream's parsers."""

    def __init__(self, folder: Path, version: str) -> None:
        self._folder, self._found = folder, Found(version, left_out=left_out(version))
        self._known = nearest_release(version).version
        for name in PROFILES:
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(profile(name, version)))

    def of(self, wanted: Sequence[Case], copy: Path) -> Found:
        """Check all cases with upstream's files in ``copy``."""
        found, rendered_cases = self._found, []
        for case in wanted:
            found.counts["runs"] += 1
            try:
                rendered_cases.append((case, self._render(case)))
            except ConfigError as error:
                found.refused.append(f"{case}: the rules: {_reasons(error)}")
            if case.profile == PROFILES[0]:
                found.counts["job files"] += 1
                if (reason := self._rules_on(case.job)) is not None:
                    found.refused.append(f"{case.name}: the rules for {self._known}: {reason}")
        configurations = [*CONFIGURATIONS, *STRICTER]
        ours = [self._rules_on(_job_of(configuration)) for configuration in configurations]
        with importable(copy) as stubbed:
            for case, paths in rendered_cases:
                self._read(case, paths)
            for configuration, refusal in zip(configurations, ours, strict=True):
                who = _VERDICTS[self._upstream_refuses(configuration), refusal is not None]
                found.rules[_name(configuration)] = who
            found.stubs = sorted(stubbed)
        return found

    def _render(self, case: Case) -> RunPaths:
        job, cluster = self._written(case.job), self._folder / f"{case.profile}.yaml"
        return trtllm_hpc.render(job, cluster, runs=self._folder / "runs", on_warning=lambda _: None).paths

    def _rules_on(self, job: Job) -> str | None:
        """Return why the rules for the nearest known release refuse a job; ``None`` if they accept it."""
        file = self._written(merged(job, {"engine": {"tensorrt_llm_version": self._known}}))
        try:
            trtllm_hpc.load_job(file, self._folder / f"{PROFILES[-1]}.yaml")
        except ConfigError as error:
            return _reasons(error)
        return None

    def _written(self, job: Job) -> Path:
        file = self._folder / "job.yaml"
        file.write_text(yaml.safe_dump(job, allow_unicode=True))
        return file

    def _upstream_refuses(self, configuration: Job) -> bool:
        file = self._folder / "llm_api.yaml"
        file.write_text(yaml.safe_dump(configuration))
        words = ("/models/Llama-3.1-8B", f"--gpus_per_node={GPUS}", f"--extra_llm_api_options={file}")
        try:
            upstream.server_arguments(words)
        except RefusedByUpstream:
            return True
        return False

    def _read(self, case: Case, paths: RunPaths) -> None:
        """Check all command lines and files of one case."""
        counts, files = self._found.counts, self._found.counts["files"]
        for role, words, file in rendered.servers(paths):
            counts.update({"command lines": 1, "words": len(words)})
            plain = upstream.server_arguments((words[0], f"--gpus_per_node={GPUS}"))
            self._compare(case, role, self._asked(case, upstream.server_arguments, words, file), plain)
        if words := rendered.front_words(paths):
            counts.update({"command lines": 1, "words": len(words)})
            phases = case.job["serve"]["disaggregated"]
            stated = {role: phases[role].get("servers", 1) for role in rendered.PHASES}
            file = rendered.front_file(paths, stated)
            self._compare_front(case, stated, self._asked(case, upstream.front_arguments, words, file))
        if (model := rendered.model_yaml(paths)) is not None:
            del model["triton_config"]  # Triton's model itself reads this key
            plain = upstream.llm_arguments({"model": model["model"], "gpus_per_node": GPUS})
            self._compare(case, None, self._asked(case, upstream.llm_arguments, model, model), plain)
        if counts["files"] == files:
            self._found.refused.append(f"{case}: nothing was rendered for upstream")

    def _asked(self, case: Case, ask: Callable[[Any], Any], what: object, file: Job) -> Any | None:
        self._found.counts.update({"files": 1, "keys": _count(file)})
        try:
            return ask(what)
        except RefusedByUpstream as error:
            self._found.refused.append(f"{case}: {' '.join(str(error).split())}")
            return None

    def _compare(self, case: Case, role: str | None, arguments: Any | None, plain: Any) -> None:
        """Compare upstream's arguments with the job file and with the defaults of a model (``plain``)."""
        if arguments is None:
            return
        stated = expected_arguments(case.job, role)
        wrong = (*differences(stated, arguments), *unasked(stated, arguments, plain))
        self._differ(case, _count(stated), wrong)

    def _compare_front(self, case: Case, servers: Mapping[str, int], front: Any | None) -> None:
        """Compare the number of servers and the router of each phase with the job file."""
        if front is None:
            return
        for (role, count), kind, router in zip(
            servers.items(), ("ctx", "gen"), (front.ctx_router_config, front.gen_router_config), strict=True
        ):
            counted = sum(server.type == kind for server in front.server_configs)
            seen = {"servers": counted, "router": router.type}
            stated = {
                "servers": count,
                "router": case.job["serve"]["disaggregated"].get("router", router.type),
            }
            wrong = differences(stated, seen)
            self._differ(case, len(stated), [f"{role} {difference}" for difference in wrong])

    def _differ(self, case: Case, compared: int, wrong: Sequence[str]) -> None:
        self._found.counts["compared"] += compared
        self._found.different += [f"{case}: {difference}" for difference in wrong]


def _reasons(error: ConfigError) -> str:
    return "; ".join(finding.message for finding in error.diagnostics)


def _job_of(configuration: Job) -> Job:
    engine = {"backend": "pytorch", "llm_api": configuration}
    return {"name": "rules", "model": {"path": "/models/Llama-3.1-8B"}, "engine": engine}


def _name(configuration: Job) -> str:
    return str(yaml.safe_dump(configuration, default_flow_style=True, width=1000, sort_keys=False)).strip()


def _count(value: object) -> int:
    """Return the number of keys in a mapping and in its inner mappings."""
    return len(value) + sum(map(_count, value.values())) if isinstance(value, Mapping) else 0


_VERDICTS = {
    (True, True): "both refuse",
    (False, False): "both take",
    (True, False): "ONLY UPSTREAM REFUSES",
    (False, True): "ONLY THE RULES REFUSE",
}
"""Verdict by two facts: whether upstream refuses a configuration, and whether the rules refuse it."""


def _table(found: Found) -> str:
    def lines(values: Sequence[str], title: str) -> list[str]:
        return [f"  {len(values):6} {title}", *(f"         {value}" for value in values)]

    return "\n".join(
        [
            f"TensorRT-LLM {found.version}",
            *(f"  {count:6} {what}" for what, count in found.counts.items()),
            f"  {len(found.left_out):6} choices left out, because this release lacks their keys",
            *lines(found.refused, "refused"),
            *lines(found.different, "different"),
            *lines(
                [f"{who:22} {name}" for name, who in found.rules.items()],
                "configurations checked by upstream and by the rules",
            ),
            *lines(found.disagreements, "on which upstream and the rules disagree"),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
