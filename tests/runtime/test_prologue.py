"""What the job file has each rank run before its server, in the server's own shell."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from tests.render.cases import plan_of
from tests.runtime.ranks import Ranks, end
from tests.upstream.llm_api import LAUNCHER
from tests.waiting import eventually
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.logs.diagnose import first_failure
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.render.scripts import render_scripts
from trtllm_hpc.runtime.stop import request_stop

Prologue = Callable[..., Path]


@pytest.fixture
def prologue(ranks: Ranks) -> Iterator[Prologue]:
    """Renders the script of a job file with these lines."""
    paths = ranks.runtime.paths

    def rendered(*lines: str) -> Path:
        job = {"name": "demo", "serve": {"prologue": list(lines)}}
        plan = plan_of(job, {"name": "here", "scheduler": "local"}, str(paths.folder))
        script = paths.script("prologue")
        script.write_text(render_scripts(plan)["prologue.sh"])
        return script

    yield rendered
    ranks.runtime("sweep", TRTLLM_HPC_JOB_ID=ranks.prefix.partition("_")[0].removeprefix("trt"))
    assert not list(Path("/tmp").glob(f"{ranks.prefix.partition('_')[0]}_*"))


def test_the_server_has_what_the_commands_export_and_is_signalled(ranks: Ranks, prologue: Prologue) -> None:
    script = prologue('export GIVEN="it\'s $(echo here)"', "ulimit -S -s 70000")
    process = ranks.start(prologue=script, wrapper="env")
    ranks.ready()
    facts = ranks.facts()
    assert facts["environment"]["GIVEN"] == "it's here" and facts["stack"] == 70000 << 10
    request_stop(ranks.runtime.paths, by="companion", reason="it is done")
    assert end(process)[0] == 0 and ranks.record().exit_code == 0 and ranks.left() == []


def test_a_command_that_fails_is_named_with_its_line_and_no_server_starts(
    ranks: Ranks, prologue: Prologue
) -> None:
    script = prologue("cd /", "cat /nowhere/engine.whl")
    code, output = end(ranks.start(prologue=script))
    why = "serve.prologue[1] failed (exit code 1): cat /nowhere/engine.whl"
    assert code == 1 and f"error: {why}" in output
    failure = first_failure(RunSnapshot(ranks.runtime.paths))
    assert failure is not None and failure.sentence.endswith(why)
    assert not ranks.started_file(0).exists() and ranks.left() == []


def test_a_server_that_no_command_has_installed_is_named(ranks: Ranks, prologue: Prologue) -> None:
    code, _ = end(ranks.start(driver="openai", server="no-such-server", prologue=prologue("true")))
    why = "starting the server after serve.prologue failed (exit code 127): no-such-server"
    assert (code, ranks.record().reason) == (127, why)


def test_a_signal_ends_a_command_at_once_and_blames_nothing(ranks: Ranks, prologue: Prologue) -> None:
    begun = ranks.runtime.paths.folder / "begun"
    process = ranks.start(prologue=prologue(f"touch {quote(str(begun))}", "sleep 100"))
    assert eventually(begun.exists)
    process.send_signal(signal.SIGTERM)
    _, output = end(process)
    assert "killed" not in output and "failed" not in output
    assert "SIGTERM" in (ranks.record().reason or "") and ranks.left() == []


def test_the_ranks_of_a_node_take_turns(ranks: Ranks, prologue: Prologue) -> None:
    folder = quote(str(ranks.runtime.paths.folder / "being installed"))
    script = prologue(f"mkdir {folder}", "sleep 0.3", f"rmdir {folder}")
    started = [ranks.start(rank, world=2, prologue=script, behaviour="exit=0") for rank in (0, 1)]
    outputs = [end(process)[1] for process in started]
    assert not any("serve.prologue" in output for output in outputs), outputs


@pytest.mark.alone
def test_commands_and_wrapper_come_before_the_launcher(
    ranks: Ranks, prologue: Prologue, tmp_path: Path
) -> None:
    """Alone, since the launcher does not wait for others of this machine."""
    given: dict[str, Any] = {
        "prologue": prologue("export GIVEN=here"),
        "wrapper": "env",
        "launcher": LAUNCHER,
    }
    leader = ranks.start(environment={"FAKE_LAUNCH_OVER": str(tmp_path / "over")}, **given)
    ranks.ready()
    assert ranks.facts()["environment"]["GIVEN"] == "here"
    request_stop(ranks.runtime.paths, by="companion", reason="it is done")
    _, output = end(leader)
    assert "prologue.sh env /" in output


def test_a_wrapper_that_is_not_there_is_named(ranks: Ranks) -> None:
    code, output = end(ranks.start(wrapper="no-such-numactl"))
    assert code == ExitCode.START and "there is no program 'no-such-numactl'" in output
    assert "remove serve.wrapper" in output
