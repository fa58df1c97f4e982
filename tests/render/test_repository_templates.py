"""Templates that are kept by their image, and what the command line makes of them."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.runtime.model_repository.upstream import write_all_models
from trtllm_hpc.cli import command
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.errors import RenderError, TrtllmHpcError
from trtllm_hpc.render.environment import render_template
from trtllm_hpc.render.templates_cache import (
    find_templates,
    image_key,
    keep_archive,
    keep_folder,
)

IMAGE = "nvcr.io#nvidia/tritonserver:24.12-trtllm-python-py3"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "trtllm-hpc" / "templates"


def profile(image: str = IMAGE, runtime: str = "pyxis", **container: str) -> ClusterProfile:
    return ClusterProfile.model_validate(
        {"name": "here", "container": {"runtime": runtime, "image": image, **container}}
    )


def archive(folder: Path) -> bytes:
    """As the task prints it."""
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(folder, ".")
    return buffer.getvalue()


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


@pytest.mark.parametrize("below", ["", "all_models", "triton_backend/all_models"])
def test_a_checkout_of_upstreams_is_kept(tmp_path: Path, below: str) -> None:
    made = write_all_models(tmp_path / "made", "0.16.0")
    checkout = tmp_path / "checkout"
    (checkout / below).parent.mkdir(parents=True, exist_ok=True)
    made.rename(checkout / below)
    kept = keep_folder(profile(), checkout)
    assert "inflight_batcher_llm/tensorrt_llm" in kept.models
    assert find_templates(profile()) == kept.all_models


def test_templates_are_the_images_own(tmp_path: Path) -> None:
    keep_folder(profile(), write_all_models(tmp_path, "0.16.0"))
    assert find_templates(profile(IMAGE.replace("24.12", "25.01"))) is None
    assert find_templates(profile(all_models="/elsewhere/all_models")) is None


def test_an_image_file_that_changed_is_another_image(tmp_path: Path) -> None:
    image = tmp_path / "tritonserver.sqsh"
    image.write_bytes(b"one")
    before = image_key(profile(str(image)))
    assert before.startswith("tritonserver.sqsh-")
    assert image_key(profile(str(image))) == before
    image.write_bytes(b"another")
    assert image_key(profile(str(image))) != before


def test_a_printed_archive_is_kept(tmp_path: Path) -> None:
    kept = keep_archive(profile(), archive(write_all_models(tmp_path, "0.16.0")), "/app/all_models")
    assert (kept.origin, kept.is_whole) == ("/app/all_models", True)
    assert find_templates(profile()) == kept.all_models


def test_half_an_archive_leaves_what_was_kept_before(tmp_path: Path, cache: Path) -> None:
    whole = archive(write_all_models(tmp_path, "0.16.0"))
    kept = keep_archive(profile(), whole, "/app/all_models")
    with pytest.raises(RenderError, match="did not come whole"):
        keep_archive(profile(), whole[: len(whole) // 2], "/app/all_models")
    assert find_templates(profile()) == kept.all_models
    assert [folder.name for folder in cache.iterdir()] == [image_key(profile())]


def test_an_archive_writes_nowhere_else(tmp_path: Path, cache: Path) -> None:
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in ("../../outside", "/outside", "group/model/config.pbtxt"):
            entry = tarfile.TarInfo(name)
            entry.size = 1
            tar.addfile(entry, BytesIO(b"x"))
    kept = keep_archive(profile(), buffer.getvalue(), "/app/all_models")
    assert list(kept.files) == ["group/model/config.pbtxt"]
    assert not [path for path in cache.rglob("*") if path.name == "outside"]


def test_a_folder_without_templates_is_refused(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(RenderError, match="no model templates"):
        keep_folder(profile(), tmp_path)
    assert not any(cache.glob("*"))


def test_kept_templates_that_lost_a_file_are_not_used(tmp_path: Path) -> None:
    kept = keep_folder(profile(), write_all_models(tmp_path, "0.16.0"))
    (kept.all_models / "inflight_batcher_llm" / "ensemble" / "config.pbtxt").unlink()
    assert find_templates(profile()) is None


def test_templates_on_this_machine_need_no_keeping(tmp_path: Path) -> None:
    all_models = write_all_models(tmp_path, "0.16.0")
    bare = ClusterProfile.model_validate(
        {"name": "here", "container": {"all_models": str(all_models), "tensorrt_llm_version": "0.16.0"}}
    )
    assert find_templates(bare) == all_models


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A profile whose container is entered with a program of ours, and an image with templates."""
    write_all_models(tmp_path / "image" / "app", "0.16.0")
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    # Enters the image as far as the script can tell: the usual folder is looked for inside it.
    program.write_text(
        "#!/bin/bash\n"
        'shift; while [ "$1" != bash ]; do shift; done\n'
        f'exec bash -c "${{3//\\/app\\//{tmp_path}/image/app/}}"\n'
    )
    program.chmod(0o755)
    file = tmp_path / "site.yaml"
    file.write_text(
        "name: site\nscheduler: local\n"
        "container: {runtime: apptainer, image: /images/tritonserver_24.12-trtllm-python-py3.sif}\n"
    )
    return file


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(
        "name: served\nmodel: {path: /models/llama}\n"
        "engine: {backend: tensorrtllm, directory: /engines/llama, max_batch_size: 16}\n"
    )
    return file


def test_fetch_and_show(tmp_path: Path, site: Path, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    before = run("templates", "show", job, "--cluster", site)
    assert isinstance(before.exception, TrtllmHpcError)
    assert f"templates fetch --cluster {site}, then" in str(before.exception)

    fetched = run("templates", "fetch", "--cluster", site)
    assert fetched.exit_code == 0, fetched.output
    assert "templates of /images/tritonserver_24.12-trtllm-python-py3.sif" in fetched.stdout

    shown = run("templates", "show", job, "--cluster", site)
    assert shown.exit_code == 0, shown.output
    headings = [line for line in shown.stdout.splitlines() if line.startswith("# ---- ")]
    assert len(headings) == 5
    one = run("templates", "show", job, "--cluster", site, "tensorrt_llm").stdout
    assert 'string_value: "/engines/llama"' in one
    assert "max_batch_size: 16" in one
    assert "${" not in one and "# ---- " not in one
    assert one in shown.stdout


@pytest.mark.parametrize("of", ["0.16.0", "0.19.0"])
def test_templates_of_another_release_than_the_images_are_told(tmp_path: Path, cache: Path, of: str) -> None:
    folder = write_all_models(tmp_path / "checkout", of)
    site = tmp_path / "site.yaml"
    site.write_text(f"name: site\ncontainer: {{runtime: pyxis, image: '{IMAGE}'}}\n")
    fetched = run("templates", "fetch", "--cluster", site, "--from", folder)
    assert fetched.exit_code == 0, fetched.output
    if of == "0.16.0":
        assert "warning" not in fetched.stderr
        return
    assert "not those of TensorRT-LLM 0.16.0; they look like those of 0.19.0" in fetched.stderr
    assert "inflight_batcher_llm/tensorrt_llm has " in fetched.stderr
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("srun", ["echo unrecognized option --container-image >&2; exit 1", None])
def test_a_task_that_never_began_points_to_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, srun: str | None
) -> None:
    (tmp_path / "bin").mkdir()
    if srun is not None:
        (tmp_path / "bin" / "srun").write_text(f"#!/bin/sh\n{srun}\n")
        (tmp_path / "bin" / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    site = tmp_path / "my site.yaml"
    site.write_text(f"name: site\ncontainer: {{runtime: pyxis, image: '{IMAGE}'}}\n")
    answer = run("templates", "fetch", "--cluster", site)
    assert f"next: trtllm-hpc doctor --cluster '{site}'; or copy" in str(answer.exception)
    assert "all_models" not in str(answer.exception)


def test_show_of_an_engine_that_is_still_to_be_built(tmp_path: Path) -> None:
    """The engines of an encoder and a decoder are folders of what build.commands write."""
    all_models = write_all_models(tmp_path / "image", "0.16.0")
    site, job = tmp_path / "site.yaml", tmp_path / "job.yaml"
    site.write_text(f"name: site\ncontainer: {{all_models: {all_models}, examples: /examples}}\n")
    job.write_text(
        f"name: built\nmodel: {{path: {tmp_path}}}\n"
        "engine: {backend: tensorrtllm, tensorrt_llm_version: 0.16.0, encoder_decoder: true}\n"
        "build: {commands: [[both-engines, '{model}', '{output}']]}\n"
    )
    shown = run("templates", "show", job, "--cluster", site, "tensorrt_llm")
    assert shown.exit_code == 0, shown.output or shown.exception
    assert "/engine/decoder" in shown.stdout and "/engine/encoder" in shown.stdout


def test_show_names_the_models_there_are(site: Path, tmp_path: Path) -> None:
    answer = run("templates", "show", "tiny-llama", "--cluster", "local", "nothing")
    assert answer.exit_code == 2
    assert "ensemble" in answer.output


def test_an_image_without_templates_says_where_they_were_looked_for(
    tmp_path: Path, cache: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    answer = run("templates", "fetch", "--cluster", site, "--set", "cluster.container.all_models=/not/there")
    assert isinstance(answer.exception, TrtllmHpcError)
    assert "looked for /not/there" in str(answer.exception)
    assert not any(cache.glob("*"))


def test_pyxis_is_entered_by_srun(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command line of the task, by a stand-in for srun that answers with an archive."""
    text = base64.b64encode(archive(write_all_models(tmp_path, "0.16.0"))).decode()
    (tmp_path / "answer").write_text(text)
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(
        f"#!/bin/bash\nprintf '%s\\0' \"$@\" > {tmp_path}/words\nenv > {tmp_path}/environment\n"
        "echo srun: job 5 queued >&2\necho templates: /app/all_models >&2\n"
        f"cat {tmp_path}/answer\necho srun: bye >&2\n"
    )
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{srun.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    site, conf = tmp_path / "site.yaml", tmp_path / "other.conf"
    conf.touch()
    site.write_text(
        f"name: site\npartition: gpu\naccount: me\nslurm_conf: {conf}\n"
        f"container:\n  runtime: pyxis\n  image: {IMAGE}\n  mounts: [/scratch:/scratch]\n"
    )
    fetched = run("templates", "fetch", "--cluster", site)
    assert fetched.exit_code == 0, fetched.output
    [kept] = cache.iterdir()
    assert json.loads((kept / "templates.json").read_text())["origin"] == "/app/all_models"
    words = (tmp_path / "words").read_text().split("\0")
    for word in (
        "--partition=gpu",
        "--account=me",
        "--ntasks=1",
        f"--container-image={IMAGE}",
        "--container-mounts=/scratch:/scratch",
    ):
        assert word in words
    environment = (tmp_path / "environment").read_text()
    # Inside somebody's allocation it would have become a step of that job.
    assert "SLURM_JOB_ID" not in environment
    assert f"SLURM_CONF={conf}" in environment


def test_the_tasks_script_is_clean_bash(tmp_path: Path) -> None:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    script = tmp_path / "templates.sh"
    script.write_text(render_template("scripts/templates.sh.j2", folders=["/a 'b'", "/$(touch x)"]))
    subprocess.run(
        [shellcheck, "--shell=bash", "--exclude=SC2016", script], check=True, stdout=subprocess.PIPE
    )
