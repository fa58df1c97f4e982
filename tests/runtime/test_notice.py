"""The webhook of `submit --notify`: which notices it receives, and that it can do no harm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.conftest import Runtime
from tests.webhook import Webhook, listening
from trtllm_hpc.runtime.notice import notify
from trtllm_hpc.runtime.records import add_event
from trtllm_hpc.runtime.renewal import Renewal


@pytest.fixture
def webhook(runtime: Runtime) -> Iterator[Webhook]:
    with listening() as server:
        runtime.paths.notify.write_text(f"{server.url}\n")
        yield server


def test_a_ready_server_is_told(runtime: Runtime, webhook: Webhook) -> None:
    sender = notify(runtime.paths, "ready", "ready at 10.0.0.1:8000 on n1", http="10.0.0.1:8000")
    assert sender is not None
    sender.join(10)
    [notice] = webhook.notices
    assert (notice["path"], notice["event"], notice["run"]) == ("/secret", "ready", runtime.paths.run_id)
    assert notice["text"] == f"trtllm-hpc: run {runtime.paths.run_id}: ready at 10.0.0.1:8000 on n1"
    assert notice["http"] == "10.0.0.1:8000" and notice["folder"] == str(runtime.paths.folder)


def test_a_failed_stage_is_told_with_its_reason(runtime: Runtime, webhook: Webhook) -> None:
    add_event(runtime.paths, "serve", "failed", reason="the engine is for 2 ranks")
    assert runtime("end", "serve", "7").returncode == 0
    add_event(runtime.paths, "serve", "stage_begin")
    assert runtime("end", "serve", "3").returncode == 0
    notice, of_next_job = webhook.notices
    assert of_next_job["text"].endswith("stage serve has failed (exit code 3)"), "its reason is not known"
    assert (notice["event"], notice["stage"], notice["exit_code"]) == ("failed", "serve", 7)
    assert "failed (exit code 7): the engine is for 2 ranks" in notice["text"]


def test_the_end_is_told_unless_another_job_goes_on(runtime: Runtime, webhook: Webhook) -> None:
    assert runtime("end", "build", "0").returncode == 0
    Renewal("1", "2").write(runtime.paths.renewal)
    assert runtime("end", "serve", "0").returncode == 0
    assert webhook.notices == []
    Renewal("1").write(runtime.paths.renewal)
    assert runtime("end", "serve", "0").returncode == 0
    assert [notice["event"] for notice in webhook.notices] == ["ended"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/secret", "http://[secret", "nonsense://secret"])
def test_a_webhook_that_fails_harms_nothing_and_is_not_shown(runtime: Runtime, url: str) -> None:
    runtime.paths.notify.write_text(url)
    answer = runtime("end", "serve", "7")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "was not reached" in answer.stdout and "secret" not in answer.stdout
