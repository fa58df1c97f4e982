"""The section ``sweep``: which variants it makes, how they are called, and what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.config.files import CLUSTER, Folder
from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.validation.load import LoadedSweep, load_sweep

JOB = "name: demo\nengine: {max_batch_size: 12}\n"


def loaded(files: Folder, sweep: str, *options: str, settings: tuple[str, ...] = ()) -> LoadedSweep:
    """Load a job file with this section."""
    files.job_file.write_text(JOB + sweep, encoding="utf-8")
    files.cluster_file.write_text(CLUSTER, encoding="utf-8")
    return load_sweep(files.job_file, str(files.cluster_file), settings, options)


def variants(sweep: LoadedSweep) -> dict[str, dict[str, Any]]:
    """Return what each variant sets, by its name."""
    return {it.override.name: dict(it.override.values) for it in sweep.variants}


def wrong(files: Folder, sweep: str, *options: str) -> Diagnostic:
    """Return the one thing that is wrong with a section."""
    with pytest.raises(ConfigError) as caught:
        loaded(files, sweep, *options)
    [found] = caught.value.diagnostics
    return found


def test_a_grid_is_every_combination_in_the_order_of_the_file(files: Folder) -> None:
    made = loaded(files, "sweep: {grid: {engine.tensor_parallel: [1, 2], engine.max_batch_size: [4, 8]}}\n")
    assert [*variants(made)] == ["tp1-bs4", "tp1-bs8", "tp2-bs4", "tp2-bs8"]
    assert made.keys == ("engine.tensor_parallel", "engine.max_batch_size")
    jobs = [it.facts.job for it in made.variants if it.facts is not None]
    assert [(it.engine.tensor_parallel, it.engine.max_batch_size) for it in jobs] == [
        (1, 4),
        (1, 8),
        (2, 4),
        (2, 8),
    ]
    assert [it.name for it in jobs][:1] == ["demo.tp1-bs4"]


def test_named_variants_are_overrides_in_which_null_removes(files: Folder) -> None:
    section = (
        "sweep:\n  variants:\n    small: {engine: {max_batch_size: null}}\n"
        "    large: {engine.max_batch_size: 32, companion: {benchmark: null}}\n"
    )
    small, large = (it.facts.job for it in loaded(files, section).variants if it.facts is not None)
    assert small.engine.max_batch_size == 8 and small.companion.benchmark is not None
    assert large.engine.max_batch_size == 32 and large.companion.benchmark is None


@pytest.mark.parametrize(
    ("excluded", "left"),
    [
        ("{engine.tensor_parallel: 2, engine.max_batch_size: 8}", ["tp1-bs4", "tp1-bs8", "tp2-bs4"]),
        ("{name: demo, engine.tensor_parallel: 1}", ["tp2-bs4", "tp2-bs8"]),
        ("{serve.nodes: 3}", ["tp1-bs4", "tp1-bs8", "tp2-bs4", "tp2-bs8"]),
    ],
)
def test_variants_can_be_left_out(files: Folder, excluded: str, left: list[str]) -> None:
    grid = "sweep:\n  grid: {engine.tensor_parallel: [1, 2], engine.max_batch_size: [4, 8]}\n"
    assert [*variants(loaded(files, f"{grid}  exclude: [{excluded}]\n"))] == left


def test_options_add_keys_and_replace_those_of_the_file(files: Folder) -> None:
    section = "sweep: {grid: {engine.max_batch_size: [4, 8]}}\n"
    made = loaded(files, section, "engine.max_batch_size=16", "engine.tensor_parallel=1,2")
    assert [*variants(made)] == ["bs16-tp1", "bs16-tp2"]
    assert [*variants(loaded(files, "", "engine.tensor_parallel=1,2"))] == ["tp1", "tp2"]


def test_settings_change_what_all_variants_share_and_the_sweep_itself(files: Folder) -> None:
    settings = ("engine.max_batch_size=16", "sweep.max_running=3", "engine.tensor_parallel=4")
    made = loaded(files, "sweep: {grid: {engine.tensor_parallel: [1, 2]}}\n", settings=settings)
    assert made.sweep.max_running == 3
    jobs = [it.facts.job.engine for it in made.variants if it.facts is not None]
    assert [(it.max_batch_size, it.tensor_parallel) for it in jobs] == [(16, 1), (16, 2)]


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("engine.dtype=float16,bfloat16", ["dtype-float16", "dtype-bfloat16"]),
        ("engine.llm_api.kv_cache_config.dtype=fp8,auto", ["fp8kv", "autokv"]),
        ("serve.tls=true,false", ["tls", "no-tls"]),
        ("serve.hang_timeout_seconds=null,60", ["no-hang-timeout-seconds", "hang-timeout-seconds60"]),
        ("companion.benchmark.concurrencies=[1, 8],[32]", ["concurrencies1_8", "concurrencies32"]),
        ("companion.benchmark=null,{requests: 3}", ["no-benchmark", "benchmark2"]),
        ("serve.environment.A=x y,/z", ["A-x-y", "A-z"]),
        ("companion.request.prompt=" + "long" * 20 + ",short", ["variant-1", "prompt-short"]),
        ("companion.request.prompt=a b,a-b", ["variant-1", "variant-2"]),
    ],
)
def test_names_say_what_differs(files: Folder, option: str, names: list[str]) -> None:
    assert [*variants(loaded(files, "", option))] == names


def test_the_same_key_of_two_sections_is_told_apart(files: Folder) -> None:
    both = ("build.cpus=1", "companion.cpus=2")
    assert [*variants(loaded(files, "", *both))] == ["build-cpus1-companion-cpus2"]


@pytest.mark.parametrize(
    ("section", "place", "words"),
    [
        ("", "job sweep", "there are no variants"),
        ("sweep: {}\n", "job:3 sweep", "has no grid"),
        ("sweep: {grid: {engine.dtype: []}}\n", "job:3 sweep.grid", "must not be empty"),
        ("sweep: {gird: {engine.dtype: [1]}}\n", "job:3 sweep.gird", "is not a known key"),
        ("sweep: {grid: {engine..dtype: [1]}}\n", "job:3 sweep.grid", "dotted key"),
        (
            "sweep:\n  grid: {name: [x]}\n  exclude: [{name: x}]\n",
            "job:5 sweep.exclude",
            "excludes every variant",
        ),
        ("sweep: [1]\n", "job:3 sweep", "must be a section of keys"),
    ],
)
def test_what_is_wrong_with_the_section_has_its_place(
    files: Folder, section: str, place: str, words: str
) -> None:
    found = wrong(files, section)
    assert files.place(found).startswith(place) and words in found.message


@pytest.mark.parametrize("option", ["engine.dtype", "=1", "engine.dtype=", "engine.dtype=[1", " a=1"])
def test_a_wrong_option_is_named(files: Folder, option: str) -> None:
    assert wrong(files, "", option).file == "--sweep"


def test_what_is_wrong_with_one_variant_is_found_beside_the_others(files: Folder) -> None:
    made = loaded(files, "sweep:\n  grid:\n    engine.tensor_parallel: [1, many]\n")
    good, bad = made.variants
    assert not good.diagnostics
    assert [files.place(it) for it in bad.diagnostics] == ["job:5 engine.tensor_parallel"]


def test_submit_and_render_refuse_a_job_file_with_several_variants(files: Folder) -> None:
    found = files.diagnostic(JOB + "sweep: {grid: {engine.max_batch_size: [4, 8]}}\n")
    assert found.code == "is-a-sweep" and found.hint and found.hint.startswith("trtllm-hpc sweep run")
