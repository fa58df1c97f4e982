"""What the first requests do not need is prepared while no request waits."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from trtllm_hpc.reference.executor import Executor, Outcome
from trtllm_hpc.reference.generation import GenerationRequest
from trtllm_hpc.reference.scheduler import Step

from ...waiting import eventually
from ..conftest import build_engine
from .leader import ask, running

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    limits = ("--max-batch-size", "4", "--max-input-len", "64", "--max-seq-len", "80")
    return build_engine(tmp_path_factory.mktemp("engine") / "e", "--synthetic", "tiny-llama", *limits)


def test_a_request_waits_for_one_preparation_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, may_go_on, prepared = Executor.run, threading.Event(), list[bool]()

    def watched(self: Executor, step: Step) -> Outcome:
        prepared.append(step.prepares)
        if step.prepares:
            assert may_go_on.wait(60)
        return run(self, step)

    monkeypatch.setattr(Executor, "is_prepared", property(lambda _: prepared.count(True) >= 3))
    monkeypatch.setattr(Executor, "run", watched)
    with running(folder) as leader:
        assert eventually(lambda: prepared == [True])
        (heard,) = ask(leader, GenerationRequest((1, 5, 6), 4))
        may_go_on.set()
        assert len(heard.wait().tokens) == 4
        assert eventually(lambda: prepared == [True, *[False] * 4, True, True]), prepared


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_on_a_gpu_the_usual_graphs_are_there_soon(folder: Path) -> None:
    with running(folder) as leader:
        assert eventually(lambda: leader._engine.is_prepared)
