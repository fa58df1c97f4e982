"""``trtllm-hpc engines``, and what ``render`` and ``submit`` say of the cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.typed import Types
from tests.cli.typed import types as types
from tests.plans import planned_stage, write_plan
from tests.runtime.engine_cache.builds import MakeRun, Run, tree
from tests.schemas.check import documented
from tests.waiting import eventually
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("TRTLLM_HPC_RUNS", "TRTLLM_HPC_ENGINES", "TRTLLM_HPC_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def built(runs: MakeRun) -> Run:
    """A build that is done, in the cache that the commands find by themselves."""
    run = runs()
    assert run.build(TRTLLM_HPC_JOB_ID="17")[0] == 0
    return run


def test_an_empty_cache_is_no_error(types: Types, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (("list",), ("verify",), ("prune", "--older-than", "1d", "--yes")):
        assert types("engines", *arguments).code == 0
    assert documented("engines list", types("engines", "list", "--json").output) == []
    assert not (home / "engines").exists()
    for folder, more in ((home / "nowhere", ", which does not exist"), (home, "")):
        monkeypatch.setenv("TRTLLM_HPC_ENGINES", str(folder))
        for name in ("list", "verify"):
            assert types("engines", name).output == f"no engines in {folder}{more}\n"


def test_the_list_shows_everything(types: Types, built: Run) -> None:
    age(built, 1)
    listed = types("engines", "list").output
    for word in (
        built.entry().name,
        built.entry("convert").name,
        "llama",
        "tensorrtllm",
        "0.16.0",
        "tp 2",
        "whole",
    ):
        assert word in listed
    records = documented("engines list", types("engines", "list", "--json").output)
    assert [record["step"] for record in records] == ["convert", "build"], "the last used first"
    assert (
        records[1]["bytes"]
        == sum(it.stat().st_size for it in built.entry().output.glob("*"))
        - (built.entry().output / "trtllm-hpc-manifest.json").stat().st_size
    )


def damage(folder: Path, kind: str) -> str:
    """Break an output in one way; what must be listed of it."""
    file = folder / "rank0.engine"
    if kind == "a bit":
        data = bytearray(file.read_bytes())
        data[100] ^= 1
        file.write_bytes(data)
        return "rank0.engine is not what was built: its SHA-256 differs"
    if kind == "a file":
        file.unlink()
        return "rank0.engine is missing"
    if kind == "a guest":
        (folder / "rank1.engine").write_bytes(b"x")
        return "rank1.engine was not built there"
    if kind == "the manifest":
        (folder / "trtllm-hpc-manifest.json").write_text("{")
        return "trtllm-hpc-manifest.json is missing or damaged"
    (folder.parent / "key.json").write_text("{}")
    return "key.json is missing or damaged"


@pytest.mark.parametrize("kind", ["a bit", "a file", "a guest", "the manifest", "the key"])
def test_verify_names_what_is_broken(types: Types, built: Run, kind: str) -> None:
    whole = types("engines", "verify")
    assert whole.code == 0 and whole.output.count("whole") == 2
    sentence = damage(built.entry().output, kind)
    broken = types("engines", "verify")
    assert broken.code == ExitCode.BUILD
    assert f"error: {built.entry().name}: {sentence}" in broken.errors
    assert f"engines prune {built.entry().name} --yes" in broken.errors
    assert f"{built.entry('convert').name}: whole" in broken.output
    assert types("engines", "verify", "convert").code == 0
    record = documented("engines verify", types("engines", "verify", "--json").output)
    assert record["entries"] == 2 and record["faults"][0]["entry"] == built.entry().name


def test_damage_that_only_reading_finds_is_remembered_until_it_is_repaired(types: Types, built: Run) -> None:
    """A changed bit leaves every size as it was: without a note the next run would serve it."""
    entry = built.entry()
    file = entry.output / "rank0.engine"
    good = file.read_bytes()
    damage(entry.output, "a bit")
    assert types("engines", "verify").code == ExitCode.BUILD
    assert not entry.is_complete()
    assert entry.faults() == ["rank0.engine is not what was built: its SHA-256 differs"]
    assert "broken: " in " ".join(types("engines", "list").output.split())
    file.write_bytes(good)
    assert types("engines", "verify").code == 0 and entry.is_complete()


# prune ----------------------------------------------------------------------------------


def finish(run: Run) -> None:
    """The run is over, as far as anybody can tell: its folder is gone."""
    for entry in (run.entry(), run.entry("convert")):
        for use in entry.uses():
            os.utime(use.file, (0, 0))


def age(run: Run, days: float, step: str = "build") -> None:
    then = time.time() - days * 86_400
    os.utime(run.entry(step).used, (then, then))


def test_nothing_is_removed_without_a_selection_and_yes(types: Types, built: Run) -> None:
    finish(built)
    assert types("engines", "prune", "--yes").output == "0 removed, 0 B\n"
    listed = types("engines", "prune", "--older-than", "0d")
    assert "2 would be removed" in listed.output and "--yes" in listed.output
    assert built.entry().is_complete()
    done = types("engines", "prune", "--older-than", "0d", "--yes")
    assert "2 removed" in done.output
    assert tree(built.entry().folder.parent) == []


def test_recently_used_engines_stay(types: Types, built: Run) -> None:
    finish(built)
    age(built, 40, "convert")
    age(built, 3)
    done = types("engines", "prune", "--older-than", "30d", "--yes")
    assert f"{built.entry('convert').name}: removed, it was last used 40 days ago" in done.output
    assert built.entry().is_complete() and not built.entry("convert").folder.exists()


def test_foreign_folders_are_neither_listed_nor_removed(types: Types, built: Run, home: Path) -> None:
    """Somebody points engines_folder at a folder with other things in it."""
    finish(built)
    mine = [home / "engines" / name for name in ("my work", "build-0123456789abcdef", ".removed-notes")]
    for folder in mine:
        folder.mkdir()
        (folder / "thesis.txt").write_text("years of work")
    assert len(documented("engines list", types("engines", "list", "--json").output)) == 2
    assert types("engines", "prune", "m", "--yes").code == ExitCode.BUILD
    assert "2 removed" in types("engines", "prune", "--older-than", "0d", "--yes").output
    assert all((folder / "thesis.txt").is_file() for folder in mine)
    assert len(list((home / "engines").iterdir())) == 3


def test_a_run_that_is_being_rendered_keeps_its_engine(types: Types, built: Run) -> None:
    """The build's own use is fresh, and its run folder has no plan."""
    kept = types("engines", "prune", "--older-than", "0d", "--yes")
    assert "stays, it is registered by" in kept.output and "0 removed" in kept.output
    assert built.entry().is_complete()


def test_an_engine_goes_right_after_the_run_that_used_it(types: Types, built: Run, home: Path) -> None:
    """A note that was written while the run folder was there is not that of a run being created."""
    finish(built)
    paths = RunPaths(home / "runs" / "demo")
    paths.make_folders()
    assert built.entry().register(paths.folder)
    assert "stays, it is registered by" in types("engines", "prune", "--older-than", "0d").output
    shutil.rmtree(paths.folder)
    assert "2 removed" in types("engines", "prune", "--older-than", "0d", "--yes").output


def test_a_rendered_run_keeps_its_engine_for_a_week(types: Types, built: Run, home: Path) -> None:
    finish(built)
    paths = RunPaths(home / "runs" / "rendered")
    paths.make_folders()
    write_plan(paths, name="a", stages=(planned_stage("serve"),), scheduler="local")
    assert built.entry().register(paths.folder)
    kept = types("engines", "prune", "--older-than", "0d", "--yes")
    assert "the run rendered, which is rendered and not submitted" in kept.output
    assert built.entry().is_complete() and not built.entry("convert").folder.exists()
    os.utime(paths.plan, (0, 0))
    assert "1 removed" in types("engines", "prune", "--older-than", "0d", "--yes").output


def test_a_running_build_stays_and_a_killed_one_is_removed(types: Types, runs: MakeRun) -> None:
    waiting = '#!/usr/bin/env bash\nset -eu\nmkdir "$output"; echo a > "$output/a"; exec sleep 3600\n'
    run = runs(script=waiting)
    process = run.start(TRTLLM_HPC_JOB_ID="17")
    assert eventually(lambda: list(run.entry("convert").folder.glob("building/*/output/a")))
    kept = types("engines", "prune", run.entry("convert").name, "--yes")
    assert "stays, it is being built by job 17 on" in kept.output
    assert "building by job 17 on" in types("engines", "list").output
    run.clean()
    assert process.returncode is not None
    assert "half-built" in types("engines", "list").output
    assert types("engines", "verify").code == 0
    assert "1 removed" in types("engines", "prune", "--yes").output
    assert tree(run.entry().folder.parent) == []


# render ---------------------------------------------------------------------------------


@pytest.fixture
def job(home: Path) -> list[str]:
    (home / "job.yaml").write_text("name: tiny\n")
    (home / "here.yaml").write_text("name: here\npartition: batch\nnode_local_folders: []\n")
    return ["render", "job.yaml", "--cluster", "./here.yaml"]


def build_by_hand(folder: Path) -> None:
    """Do what the build stage does, with a command that makes any engine."""
    paths = RunPaths(folder)
    script = paths.script("build")
    record: dict[str, Any] = json.loads(paths.build_recipe.read_text())
    script.write_text('#!/usr/bin/env bash\nset -eu\nmkdir "$output"\necho {} > "$output/config.json"\n')
    record["script_sha256"] = hashlib.sha256(script.read_bytes()).hexdigest()
    paths.build_recipe.write_text(json.dumps(record))
    subprocess.run([sys.executable, "-I", "-S", paths.runtime, "engine"], check=True, capture_output=True)


def test_a_run_whose_engine_is_there_has_no_build_stage(types: Types, job: list[str]) -> None:
    first = types(*job)
    assert "engine: not in the cache, it is built first (engine-" in first.output
    folder = Path(first.output.splitlines()[0].removeprefix("rendered "))
    assert (folder / "scripts" / "build.sh").is_file()
    build_by_hand(folder)
    second = types(*job, "--json")
    record = documented("render", second.output)
    assert record["engine"]["state"] == "found"
    assert [Path(script).name for script in record["scripts"]] == ["serve.sbatch", "companion.sbatch"]
    found = RunPaths(record["folder"])
    assert (found.engine / "config.json").read_text() == "{}\n"
    assert not found.script("build").exists() and not found.build_recipe.exists()
    assert "build" not in found.sbatch("companion").read_text()
    output = types(*job).output
    assert "engine: found in the cache (engine-" in output and "nothing to build" in output
    assert "afterok:$build" not in output
    missed = types(*job, "--set", "engine.max_batch_size=3").output
    assert "    --max-batch-size (engine): 8 -> 3\n" in missed
