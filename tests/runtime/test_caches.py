"""Where programs in a container keep what they compile, through the command that starts one of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.runtime.conftest import Runtime
from trtllm_hpc.runtime import caches
from trtllm_hpc.runtime.caches import (
    CACHES,
    GIVEN,
    IMAGE,
    KEEPS_KERNELS,
    SHARED,
    TOP,
)

HOST = os.uname().nodename


@pytest.fixture
def top(tmp_path: Path) -> Path:
    made = tmp_path / "caches"
    made.mkdir(mode=0o700)
    return made


def started(runtime: Runtime, top: Path | None, **environment: str) -> dict[str, str]:
    """The variables of a program that the runtime starts; none of them is set before."""
    scripts = {} if top is None else {TOP: str(top), IMAGE: "image1", GIVEN: "", "TRTLLM_HPC_JOB_ID": "7"}
    environment = {"HOME": "/home/of/nobody", **scripts, **environment}
    none = [word for name in CACHES for word in ("-u", name) if name not in environment]
    runtime.under = ["env", *none]
    done = runtime("alone", "env", **environment)
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def test_each_cache_has_a_folder_that_only_the_user_can_enter(runtime: Runtime, top: Path) -> None:
    found = started(runtime, top)
    for name in CACHES:
        folder = Path(found[name])
        assert folder.is_relative_to(top) and folder.stat().st_mode & 0o777 == 0o700, name
        assert (HOST in folder.parts) != (name in SHARED), name
    assert len({found[name] for name in CACHES}) == len(CACHES)
    assert found[KEEPS_KERNELS] == "1"


def test_the_next_program_finds_the_same_folders_and_another_image_others(
    runtime: Runtime, top: Path
) -> None:
    first, again = started(runtime, top), started(runtime, top)
    other = started(runtime, top, **{IMAGE: "image2"})
    for name in CACHES:
        assert first[name] == again[name]
        # What was downloaded is the same for every image.
        assert (first[name] == other[name]) == (name == "HF_HOME")


def test_outside_containers_nothing_is_changed(runtime: Runtime) -> None:
    found = started(runtime, None)
    assert found["HOME"] == "/home/of/nobody" and "TRITON_CACHE_DIR" not in found
    assert KEEPS_KERNELS not in found


def test_what_the_profile_sets_is_never_changed(runtime: Runtime, top: Path) -> None:
    given = dict.fromkeys(CACHES, "/proc/cannot/be/written")
    found = started(runtime, top, **{GIVEN: " ".join(given)}, **given)
    assert given.items() <= found.items()
    assert started(runtime, top, **{KEEPS_KERNELS: "0"})[KEEPS_KERNELS] == "0"


def test_what_a_login_shell_set_stays_only_where_it_can_be_written(runtime: Runtime, top: Path) -> None:
    own = str(top.parent)
    found = started(runtime, top, TRITON_CACHE_DIR=own, FLASHINFER_WORKSPACE_BASE="/proc/nowhere")
    assert found["TRITON_CACHE_DIR"] == own
    assert found["FLASHINFER_WORKSPACE_BASE"].startswith(str(top))


def test_models_of_the_users_own_hf_home_are_found_though_it_is_read_only(
    runtime: Runtime, top: Path
) -> None:
    found = started(runtime, top, HF_HOME="/proc/models")
    assert found["HF_HOME"] == "/proc/models" and found["HF_MODULES_CACHE"].startswith(str(top))


def test_a_home_that_is_mounted_stays(runtime: Runtime, top: Path, tmp_path: Path) -> None:
    """With what is below it by default, such as the token for Hugging Face."""
    found = started(runtime, top, HOME=str(tmp_path))
    assert found["HOME"] == str(tmp_path)
    assert "HF_HOME" not in found and "XDG_CACHE_HOME" not in found
    assert found["TORCHINDUCTOR_CACHE_DIR"].startswith(str(top))


def test_kinds_of_gpus_have_caches_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment = {TOP: str(tmp_path), IMAGE: "image1"}
    monkeypatch.setattr(caches, "_GPUS", tmp_path)
    assert caches.kept_folder(environment).name == "no-gpu"
    for number in range(2):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
        text = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t 18\n"
        (tmp_path / f"0000:0{number}:00.0" / "information").write_text(text)
    assert caches.kept_folder(environment) == tmp_path / "image1" / "nvidia-h100-80gb-hbm3"


def test_a_file_system_without_locks_gets_no_cache_that_needs_them(
    monkeypatch: pytest.MonkeyPatch, top: Path
) -> None:
    """Such as Lustre without the option flock: FlashInfer would end with an error."""
    monkeypatch.setattr(caches, "can_lock", lambda _folder: False)
    monkeypatch.setattr(caches, "SCRATCH", top.parent / "tmp")
    environment = {TOP: str(top), IMAGE: "image1", "TRTLLM_HPC_JOB_ID": "7"}
    caches.use_caches(environment)
    assert environment["FLASHINFER_WORKSPACE_BASE"] == str(top.parent / "tmp" / "trt7_caches" / "flashinfer")
    assert environment["TRITON_CACHE_DIR"].startswith(str(top))
