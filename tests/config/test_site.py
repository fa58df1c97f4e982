"""Profiles and limits that a site sets for everybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.files import JOB, Folder
from trtllm_hpc.config.files import default_profile, find_profile, profile_origins, profiles

LIMITS = (
    "name: here\ngpus_per_node: 4\n"
    "limits: {time_minutes: 90, gpus: 4, proxy: obligatory, message: Ask hpc@example.org.}\n"
)


def _profile(folder: Path, name: str) -> Path:
    file = folder / "clusters" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"name: {name}\n", encoding="utf-8")
    return file


def test_the_users_own_profile_comes_before_the_sites_and_the_sites_before_a_shipped_one(
    files: Folder,
) -> None:
    site = _profile(files.folder / "site", "local")
    assert (default_profile(), find_profile("local")) == ("sandbox", site)
    _profile(files.folder / "site", "default")
    own = _profile(files.folder / "config" / "trtllm-hpc", "local")
    assert (default_profile(), find_profile("local")) == ("default", own)
    assert set(profiles()) > {"default", "local", "sandbox"}
    assert list(profile_origins("local")) == [
        f"the profile local is {own}",
        f"your own profiles in {own.parent}: local",
        f"your site's profiles in {site.parent}: default, local",
    ]


@pytest.mark.parametrize(
    ("job", "field", "words"),
    [
        ("serve: {time_limit_minutes: 91}", "serve.time_limit_minutes", "91 minutes, but the profile 'here'"),
        ("companion: {time_limit_minutes: 120}", "companion.time_limit_minutes", "allows 90"),
        ("serve: {instances: 5, placement: spread}", "serve", "5 GPUs, but the profile 'here' allows 4"),
        ("serve: {proxy: none}", "serve.proxy", "allows only servers behind a proxy with a key"),
    ],
)
def test_a_job_beyond_a_sites_limit_is_refused_with_the_sites_sentence(
    files: Folder, job: str, field: str, words: str
) -> None:
    found = files.diagnostic(f"{JOB}{job}\n", LIMITS)
    assert (found.code, found.field, found.hint) == ("site-limit", field, "Ask hpc@example.org.")
    assert words in found.message


def test_a_job_at_the_limits_is_taken(files: Folder) -> None:
    serve = files.load(f"{JOB}serve: {{instances: 4, time_limit_minutes: 90}}\n", LIMITS).job.serve
    assert (serve.instances, serve.time_limit_minutes) == (4, 90)
