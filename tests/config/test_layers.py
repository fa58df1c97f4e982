"""Built-in defaults < the profile's job_defaults < the job file < --set, and the ways to name a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.files import CLUSTER, JOB, Folder
from tests.config.test_shipped import PROFILES
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.validation.load import load

DEFAULTS = (
    CLUSTER
    + "job_defaults:\n  serve: {nodes: 2, time_limit_minutes: 90}\n  engine:\n    tensor_parallel: 2\n"
)


def test_each_layer_wins_over_those_below(files: Folder) -> None:
    built_in = files.load().job.serve
    assert (built_in.nodes, built_in.time_limit_minutes, built_in.cpus_per_rank) == (None, 60, 2)
    profile = files.load(JOB, DEFAULTS).job.serve
    assert (profile.nodes, profile.time_limit_minutes, profile.cpus_per_rank) == (2, 90, 2)
    job = files.load(JOB + "serve: {time_limit_minutes: 30}\n", DEFAULTS).job.serve
    assert (job.nodes, job.time_limit_minutes) == (2, 30)
    line = files.load(
        JOB + "serve: {time_limit_minutes: 30}\n", DEFAULTS, "serve.time_limit_minutes=20"
    ).job.serve
    assert (line.nodes, line.time_limit_minutes) == (2, 20)


def test_a_key_of_the_benchmark_replaces_those_that_it_excludes_in_the_layers_below(files: Folder) -> None:
    job = JOB + "companion: {benchmark: {concurrency: 32, requests: 50}}\n"
    set_ = ("companion.benchmark.concurrencies=[1, 8]", "companion.benchmark.duration_seconds=30")
    benchmark = files.load(job, CLUSTER, *set_).job.companion.benchmark
    assert benchmark is not None
    assert (benchmark.concurrency, benchmark.concurrencies) == (None, [1, 8])
    assert (benchmark.requests, benchmark.duration_seconds) == (None, 30)
    both = "companion: {benchmark: {concurrency: 32, concurrencies: [1, 8]}}\n"
    assert files.diagnostic(JOB + both).field == "companion.benchmark.concurrencies"


def test_a_later_setting_wins_and_values_are_yaml(files: Folder) -> None:
    settings = (
        "name='7'",
        "serve.nodes=4",
        "serve.nodes=1",
        "serve.keep_running=true",
        "cluster.partition=a=b",
        "companion.benchmark.rate_per_second=2e1",
    )
    resolved = files.load(JOB, CLUSTER, *settings)
    assert (resolved.job.name, resolved.job.serve.nodes, resolved.job.serve.keep_running) == ("7", 1, True)
    assert resolved.cluster.partition == "a=b"
    assert resolved.job.companion.benchmark is not None
    assert resolved.job.companion.benchmark.rate_per_second == 20.0


@pytest.mark.parametrize(
    ("setting", "code", "field"),
    [
        ("serve.nodes", "bad-setting", ""),
        ("=2", "bad-setting", ""),
        ("serve..nodes=2", "bad-setting", ""),
        ("serve.nods=2", "unknown-key", "serve.nods"),
        ("serve.nodes=two", "wrong-type", "serve.nodes"),
        ("serve=2", "wrong-type", "serve"),
        ("serve.nodes.more=2", "wrong-type", "serve.nodes"),
        ("serve.nodes=[1", "bad-yaml", "serve.nodes"),
        ("serve.nodes=*x", "bad-yaml", "serve.nodes"),
        ("\x1b[2J=[1", "bad-yaml", r"'\x1b[2J'"),
        ("cluster.mpi=", "wrong-type", "cluster.mpi"),
        ("cluster.partitions=gpu", "unknown-key", "cluster.partitions"),
        ("cluster=gpu", "unknown-key", "cluster"),
    ],
)
def test_a_wrong_setting_is_named_as_one(files: Folder, setting: str, code: str, field: str) -> None:
    diagnostic = files.diagnostic(JOB, CLUSTER, setting)
    assert (diagnostic.code, diagnostic.file, diagnostic.line, diagnostic.field) == (
        code,
        "--set",
        None,
        field,
    )


def test_a_wrong_default_of_the_profile_is_placed_there(files: Folder) -> None:
    diagnostic = files.diagnostic(JOB, CLUSTER + "job_defaults:\n  serve:\n    nods: 2\n")
    assert (diagnostic.code, files.place(diagnostic)) == ("unknown-key", "cluster:4 job_defaults.serve.nods")


# The model: a path and a synthetic one set each other aside -----------------------------


def test_a_setting_replaces_the_kind_of_model(files: Folder) -> None:
    model = files.load(JOB + "model: {synthetic: tiny-llama}\n", CLUSTER, "model.path=/models/a").job.model
    assert (model.path, model.synthetic) == ("/models/a", None)
    model = files.load(JOB + "model: {path: /models/a}\n", CLUSTER, "model.synthetic=tiny-llama").job.model
    assert (model.path, model.synthetic) == (None, "tiny-llama")


def test_both_kinds_in_one_file_are_a_conflict(files: Folder) -> None:
    diagnostic = files.diagnostic(JOB + "model:\n  path: /a\n  synthetic: tiny-llama\n")
    assert (diagnostic.code, files.place(diagnostic)) == ("conflict", "job:2 model")


def test_no_model_at_all_is_missing_but_for_a_finished_engine(files: Folder) -> None:
    diagnostic = files.diagnostic(JOB + "model: {synthetic: null}\n")
    assert (diagnostic.code, files.place(diagnostic)) == ("missing", "job:2 model")
    assert (
        files.load(JOB + "model: {synthetic: null}\nengine: {directory: /engines/a}\n").job.model.path is None
    )


# Relative paths ---------------------------------------------------------------------------


def test_relative_paths_start_at_the_file_that_holds_them(
    files: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = files.folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", "/home/me")
    folder = str(files.folder)
    assert files.load(JOB + "model: {path: models/a b}\n").job.model.path == f"{folder}/models/a b"
    assert files.load(JOB + "engine: {directory: ../e}\n").job.engine.directory == f"{files.folder.parent}/e"
    assert files.load(JOB + "model: {path: ~/a}\n").job.model.path == "/home/me/a"
    assert files.load(JOB, CLUSTER, "model.path=a").job.model.path == f"{folder}/elsewhere/a"
    assert files.load(JOB + "model: {path: /models/../a}\n").job.model.path == "/a"


# Naming a profile and a job -------------------------------------------------------------


def test_a_profile_of_ones_own_is_called_by_name_and_goes_before_a_shipped_one(files: Folder) -> None:
    own = files.folder / "config" / "trtllm-hpc" / "clusters"
    own.mkdir(parents=True)
    (own / "mysite.yaml").write_text("name: mysite\n")
    (own / "local.yaml").write_text("name: mine\nscheduler: local\n")
    files.load()
    assert load(files.job_file, "mysite").cluster.name == "mysite"
    assert load(files.job_file, "local").cluster.name == "mine"


def test_an_unknown_profile_lists_those_there_are(files: Folder) -> None:
    files.load()
    with pytest.raises(ConfigError) as caught:
        load(files.job_file, "sandbx")
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.file) == ("not-found", "--cluster")
    assert diagnostic.choices == PROFILES
    assert "did you mean 'sandbox'" in diagnostic.message


def test_a_shipped_job_is_called_by_name_unless_a_file_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(Path("tiny-llama"), "local").job.name == "tiny-llama"
    Path("tiny-llama").write_text("name: mine\n")
    assert load(Path("tiny-llama"), "local").job.name == "mine"


def test_a_setting_whose_key_wants_text_is_taken_as_it_was_typed(files: Folder) -> None:
    # The shell eats quotes, so no way of typing them would help.
    settings = ("name=1.10", "cluster.environment.A=true", "cluster.setup=[0x10]", "model.path=2024")
    resolved = files.load(JOB, CLUSTER, *settings)
    assert resolved.job.name == "1.10"
    assert resolved.job.model.path == str(Path.cwd() / "2024")
    assert resolved.cluster.environment == {"A": "true"}
    assert resolved.cluster.setup == ["0x10"]


def test_in_a_file_and_for_another_type_the_type_still_counts(files: Folder) -> None:
    with pytest.raises(ConfigError) as caught:
        files.load(JOB.replace("name: ", "name: 1 #"), CLUSTER, "serve.nodes=2.5", "serve.mode=null")
    found = {diagnostic.field: diagnostic.code for diagnostic in caught.value.diagnostics}
    assert found["name"] == found["serve.nodes"] == "wrong-type"
    assert "serve.mode" in found
