"""Models of a hub, against a server that speaks its protocol: downloaded once and whole; faults are named."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import trtllm_hpc
from tests.runs.hub import COMMIT, TOKEN, Hub, HubServer
from tests.waiting import eventually
from trtllm_hpc.config.hub import INCOMPLETE, HubFailed
from trtllm_hpc.errors import ConfigError, ExitCode
from trtllm_hpc.runs.hub import fetch, find, main
from trtllm_hpc.runtime.engine_cache.cache import CacheEntry
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.records import read_events

WEIGHTS = bytes(range(256)) * 65_536
"""16 MiB: more than the block in which a download is read."""
FILES = {
    "config.json": b'{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}',
    "tokenizer.json": b"{}",
    "model-00001-of-00002.safetensors": WEIGHTS,
    "model-00002-of-00002.safetensors": b"small" * 1000,
    "pytorch_model.bin": b"the same in another format",
    "original/consolidated.00.pth": b"and in a third",
    ".gitattributes": b"",
}
LARGE, SMALL = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    hub = Hub(dict(FILES))
    server = HubServer(hub)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    # A test before may have imported the library, or left the variable, while offline.
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield hub
    server.shutdown()
    server.server_close()


def whole(models: Path, revision: str | None = None, token_file: Path | None = None) -> Path:
    """Return the folder of the model after its download."""
    token = None if token_file is None else str(token_file)
    folder, _ = find(models, "org/tiny", revision, token)
    fetch(folder, token)
    return folder


def a_process(models: Path) -> subprocess.Popen[str]:
    """Start a process that downloads the model."""
    code = (
        "import sys; from pathlib import Path; from trtllm_hpc.runs import hub;"
        "hub._NEWS_S = hub._POLL_S = 0.1;"
        "hub.fetch(hub.find(Path(sys.argv[1]), 'org/tiny', None, None)[0], None)"
    )
    return subprocess.Popen([sys.executable, "-c", code, str(models)], stderr=subprocess.PIPE, text=True)


def of(hub: Hub, name: str) -> list[str]:
    """Return the ranges of a file that were asked for."""
    return [asked for it, asked in hub.ranges if it == name]


def test_a_model_is_downloaded_once_and_its_folder_has_what_a_server_reads(hub: Hub, tmp_path: Path) -> None:
    folder, record = find(tmp_path / "models", "org/tiny", None, None)
    assert sorted(it.name for it in folder.iterdir()) == ["config.json", "tokenizer.json"]
    assert set(record.missing(folder)) == {name for name in FILES if name.endswith(".safetensors")}
    assert whole(tmp_path / "models") == folder
    assert (folder / LARGE).read_bytes() == WEIGHTS
    assert (folder.name, folder.parent.name, record.commit) == ("tiny", COMMIT, COMMIT)
    assert not (folder.parent / "partial").exists()
    before = list(hub.ranges)
    assert {name for name, _ in before} == {
        it for it in FILES if it[0] != "." and it[-4:] not in (".bin", ".pth")
    }
    whole(tmp_path / "models")
    assert hub.ranges == before


def test_a_connection_that_is_cut_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    hub.cut[LARGE] = 11 * 2**20
    assert (whole(tmp_path) / LARGE).read_bytes() == WEIGHTS
    [first, second] = of(hub, LARGE)
    assert first == "" and int(second.removeprefix("bytes=").rstrip("-")) > 10 * 2**20 - 1


def test_a_download_that_was_killed_keeps_the_files_that_are_whole(hub: Hub, tmp_path: Path) -> None:
    hub.held[LARGE] = threading.Event()
    folder, record = find(tmp_path, "org/tiny", None, None)
    partial = folder.parent / "partial"
    with a_process(tmp_path) as process:
        # The first block of 10 MiB is written, and the second of 6 is awaited.
        assert eventually(lambda: record.downloaded(folder) == "0.01 of 0.02 GiB are downloaded")
        assert eventually((partial / SMALL).exists)
        process.kill()
        hub.held.pop(LARGE).set()
    assert len([*partial.glob(INCOMPLETE)]) == 1
    assert (whole(tmp_path) / LARGE).read_bytes() == WEIGHTS
    assert (of(hub, SMALL), of(hub, LARGE)) == ([""], ["", ""])
    assert not partial.exists()


def test_of_two_at_once_the_second_waits(hub: Hub, tmp_path: Path) -> None:
    hub.held[LARGE] = threading.Event()
    with a_process(tmp_path) as first:
        assert hub.reached.wait(20)
        with a_process(tmp_path) as second:
            assert second.stderr is not None
            said = second.stderr.readline()
            assert re.fullmatch(r"org/tiny: .+ is downloading 0.02 GiB; waiting ...\n", said)
            hub.held[LARGE].set()
            second.stderr.read()  # keeps its pipe open until it ends
    assert (first.returncode, second.returncode) == (0, 0)
    assert (tmp_path / "org--tiny" / COMMIT / "tiny" / LARGE).read_bytes() == WEIGHTS
    assert len(of(hub, LARGE)) == 1


def test_a_file_with_another_hash_is_refused_and_fetched_again(hub: Hub, tmp_path: Path) -> None:
    for name in ("config.json", LARGE):
        hub.wrong = {name}
        with pytest.raises(HubFailed, match=f"{name} of org/tiny: the hash differs"):
            whole(tmp_path)
    hub.wrong.clear()
    assert (whole(tmp_path) / LARGE).read_bytes() == WEIGHTS


def test_a_token_opens_a_gated_model_and_is_nowhere_else(hub: Hub, tmp_path: Path) -> None:
    hub.gated = True
    token = tmp_path / "token"
    token.write_text("hf_another\n")
    with pytest.raises(HubFailed, match="org/tiny is gated, and no token was given") as raised:
        whole(tmp_path / "models")
    assert "ask for access at http://127.0.0.1" in str(raised.value)
    assert "--set model.token_file=FILE" in str(raised.value)
    with pytest.raises(HubFailed, match=f"gated, and the token in {token} does not give access"):
        whole(tmp_path / "models", token_file=token)
    token.write_text(f"{TOKEN}\n")
    assert (whole(tmp_path / "models", token_file=token) / LARGE).is_file()
    assert not hub.leaked
    found = [
        it for it in (tmp_path / "models").rglob("*") if it.is_file() and TOKEN.encode() in it.read_bytes()
    ]
    assert found == []


def test_what_is_wrong_with_a_name_is_a_sentence(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(HubFailed, match="org/tiny has no revision v9"):
        whole(tmp_path, "v9")
    with pytest.raises(HubFailed, match="no model org/other, or it is private and no token was given"):
        find(tmp_path, "org/other", None, None)
    token = tmp_path / "token"
    for content in ("", "two words", "hf_a\nhf_b"):
        token.write_text(content)
        with pytest.raises(HubFailed, match="does not contain a token") as raised:
            whole(tmp_path, token_file=token)
        assert not content or content not in str(raised.value)


def test_without_the_hub_a_known_commit_is_enough(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = whole(tmp_path)
    [port] = free_ports(1)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    assert whole(tmp_path, COMMIT) == folder
    with pytest.raises(HubFailed, match="The hub cannot be reached") as raised:
        whole(tmp_path)
    assert "trtllm-hpc models fetch org/tiny" in str(raised.value)


def test_a_full_disk_is_named_before_the_download(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = find(tmp_path, "org/tiny", None, None)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**7))
    with pytest.raises(HubFailed, match=r"0.02 GiB are still to download, and 0.01 GiB are free") as raised:
        fetch(folder, None)
    assert "models prune --older-than 30d" in str(raised.value) and of(hub, LARGE) == []


# Jobs ------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text("name: hubbed\nmodel:\n  hub: org/tiny\n  token_file: token\n")
    (tmp_path / "token").write_text(TOKEN)
    return file


def test_doctor_fetches_small_files_and_render_the_model(hub: Hub, job: Path, tmp_path: Path) -> None:
    hub.gated = True
    runs = tmp_path / "runs"
    report = trtllm_hpc.doctor(job, "local", runs=runs)
    [row] = [it for it in report.checks if it.code == "model-files"]
    assert (
        row.state == "ok"
        and "0.02 GiB of org/tiny are not downloaded yet; its small files are" in row.message
    )
    assert of(hub, LARGE) == [] and of(hub, "config.json") == [""]
    run = trtllm_hpc.render(job, "local", runs=runs)
    folder = tmp_path / "models" / "org--tiny" / COMMIT / "tiny"
    assert (folder / LARGE).read_bytes() == WEIGHTS
    model = run.job.model
    assert (model.path, model.hub, model.revision) == (str(folder), "org/tiny", COMMIT)
    lock = json.loads(run.paths.lock.read_text())
    assert lock["checkpoint"].keys() == set(list(FILES)[:4]) and lock["job"]["model"]["revision"] == COMMIT
    assert lock["job"]["model"]["token_file"] == str(tmp_path / "token")
    files = [it for it in run.folder.rglob("*") if it.is_file()]
    assert [it for it in files if TOKEN.encode() in it.read_bytes()] == []
    assert [use.run for use in CacheEntry(folder.parent).uses()] == [str(run.folder)]


def test_what_is_checked_first_costs_no_download(hub: Hub, job: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"job.yaml:3: model.hub: org/tiny has no revision v9"):
        trtllm_hpc.render(job, "local", ["model.revision=v9"], tmp_path / "runs")
    with pytest.raises(ConfigError, match="tensor_parallel"):
        trtllm_hpc.render(job, "local", ["engine.tensor_parallel=0"], tmp_path / "runs")
    assert of(hub, LARGE) == []


def test_a_lock_and_a_spec_are_repeated_without_the_hub(hub: Hub, job: Path, tmp_path: Path) -> None:
    run = trtllm_hpc.render(job, "local", runs=tmp_path / "runs")
    asked, ranges = hub.asked, list(hub.ranges)
    for again in (run.paths.lock, run.paths.spec):
        model = trtllm_hpc.render(again, "local", runs=tmp_path / "runs").job.model
        assert model == run.job.model
    assert (hub.asked, hub.ranges) == (asked, ranges)
    shutil.rmtree(tmp_path / "models")
    warnings: list[str] = []
    trtllm_hpc.render(run.paths.lock, "local", runs=tmp_path / "runs", on_warning=warnings.append)
    assert [it for it in warnings if "checkpoint" in it] == []
    shutil.rmtree(tmp_path / "models")
    trtllm_hpc.render(run.paths.spec, "local", runs=tmp_path / "runs")
    assert (Path(str(run.job.model.path)) / LARGE).read_bytes() == WEIGHTS


def test_a_sweep_downloads_each_model_once(hub: Hub, job: Path, tmp_path: Path) -> None:
    vary = ["model.revision=main,v2", "engine.max_batch_size=2,4"]
    sweep = trtllm_hpc.plan_sweep(job, "local", runs=tmp_path / "runs", vary=vary)
    assert of(hub, LARGE) == [] and hub.asked == 2
    sweep.write()
    assert len(sweep.runs) == 4 and len(of(hub, LARGE)) == 2


def test_a_partition_of_the_profile_downloads_in_a_job_before_all_others(
    hub: Hub, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.gated = True
    profile = tmp_path / "site.yaml"
    profile.write_text("name: site\nconstraint: h100\ndownload_partition: cpu\n")
    run = trtllm_hpc.render(job, str(profile), runs=tmp_path / "runs")
    stages = {it["name"]: it for it in json.loads(run.paths.plan.read_text())["stages"]}
    assert [*stages] == ["download", "build", "serve", "companion"] and of(hub, LARGE) == []
    assert all({"kind": "afterok", "stage": "download"} in stages[it]["after"] for it in [*stages][1:])
    script = run.paths.sbatch("download").read_text()
    assert "--partition=cpu" in script and "h100" not in script and TOKEN not in script
    (tmp_path / "token").write_text("hf_wrong")
    assert main(str(run.folder)) == ExitCode.CONFIG
    [event] = [it for it in read_events(run.paths, "download") if "reason" in it.data]
    assert "org/tiny is gated" in event.data["reason"] and "hf_wrong" not in capsys.readouterr().err
    (tmp_path / "token").write_text(TOKEN)
    assert main(str(run.folder)) == ExitCode.OK
    assert (Path(str(run.job.model.path)) / LARGE).read_bytes() == WEIGHTS
    again = trtllm_hpc.render(job, str(profile), runs=tmp_path / "runs")
    assert not again.paths.sbatch("download").exists()
