"""``doctor --on-nodes`` on a real Slurm, with stand-ins that have the faults of images and sites."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.schemas.check import documented
from tests.slurm.conftest import Person
from tests.slurm.upstream_site import Site, upstream_site
from tests.upstream.container import add_llm_api, add_package
from tests.waiting import eventually
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.runtime.node_checks.exchange import UNATTENDED_VARIABLE

pytestmark = pytest.mark.slurm

NGRAM = {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 2}
FRONTEND = {"frontend": "openai", "nodes": 2}
PHASE = {"servers": 1, "tensor_parallel": 1}
PHASES: dict[str, Any] = {
    "mode": "disaggregated",
    "nodes": None,
    "disaggregated": {"context": PHASE, "generation": PHASE, "router": "load_balancing"},
}


@pytest.fixture
def site(person: Person, engine: Path) -> Iterator[Site]:
    with upstream_site(person, engine / "tokenizer", "1.2.0", {}) as made:
        add_llm_api(made.container)
        add_package(made.container)
        yield made


def serves(site: Site, **serve: Any) -> Path:
    engine = {"backend": "pytorch", "llm_api": {"speculative_config": NGRAM}}
    return site.job("checked", engine=engine, repository={}, serve={**FRONTEND, **serve})


def folders(site: Site) -> set[Path]:
    """Runs, also those of other tests, and whatever else lies beside them."""
    return set((site.folder / "runs").glob("*"))


def rows(site: Site, job: Path, *words: str) -> dict[str, dict[str, Any]]:
    others = folders(site)
    answer = site.types("doctor", job, "--cluster", site.profile, "--on-nodes", "--json", *words)
    assert answer.returncode in (0, ExitCode.CONFIG), answer.stderr
    assert answer.stdout, answer.stderr
    found = {row["code"]: row for row in documented("doctor", answer.stdout)["checks"]}
    assert answer.returncode == (ExitCode.CONFIG if "fail" in outcomes(found) else 0)
    assert folders(site) == others, "its folder is gone"
    assert site.has_no_jobs()
    return found


def outcomes(found: dict[str, dict[str, Any]]) -> set[str]:
    return {row["state"] for row in found.values()}


def on_nodes(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    parts = ("node-", "image-", "import-", "ranks-", "step-", "model-")
    return {name: row for name, row in found.items() if name.startswith(parts)}


@pytest.mark.thorough
def test_a_healthy_site_has_no_fault(site: Site) -> None:
    bundle = site.folder / "site.json"
    found = on_nodes(rows(site, serves(site, **PHASES), "--nodes", "2", "--bundle", str(bundle)))
    # The sandbox's GPUs are claimed, its limit on locked memory and its network are this machine's, and the
    # stand-in has a part of the keys.
    wrong = {name: row for name, row in found.items() if row["state"] != "ok"}
    assert set(wrong) <= {
        "node-gpus",
        "node-locked-memory",
    }, wrong
    assert "fail" not in outcomes(wrong), wrong
    assert "joins 2 ranks on sbx" in found["ranks-joined"]["message"]
    assert "joins the ranks: an all-reduce of" in found["ranks-nccl"]["message"]
    assert found["node-network"]["message"] == "the nodes reach each other"
    assert "front.yaml" in found["image-parsers"]["message"]
    record = json.loads(bundle.read_text())
    assert record["facts"]["image"]["packages"]["tensorrt_llm"] == "1.2.0"
    assert "nobody" not in bundle.read_text() and str(site.folder) not in bundle.read_text()


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a site or an image, and the row that must say so."""

    check: str
    says: str
    breaks: Callable[[Site], object] = lambda site: None
    settings: tuple[str, ...] = ()
    serve: Mapping[str, Any] = field(default_factory=dict)
    outcome: str = "fail"


def edited(file: str, old: str, new: str) -> Callable[[Site], object]:
    """Change a file of the image's package."""

    def edit(site: Site) -> None:
        path = site.container.package / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return edit


def program(name: str, text: str) -> Callable[[Site], object]:
    """Put another program in the place of one of the image's."""

    def put(site: Site) -> None:
        file = site.container.folder / "bin" / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    return put


def mpi4py(package: str, mpi: str = "") -> Callable[[Site], object]:
    """Lay a package mpi4py before the real one."""

    def lay(site: Site) -> None:
        folder = site.container.folder / "site" / "mpi4py"
        folder.mkdir()
        (folder / "__init__.py").write_text(package)
        (folder / "MPI.py").write_text(mpi)

    return lay


ALONE = """
class COMM_WORLD:
    Get_size = staticmethod(lambda: 1)
    Get_rank = staticmethod(lambda: 0)
    allgather = staticmethod(lambda value: [value])
Comm, Get_library_version = object, lambda: "Open MPI v4.1.7 without PMIx"
"""
NO_DRIVER = edited(
    "__init__.py", "import os\n", "raise ImportError('libcuda.so.1: cannot open shared object file')\n"
)
NO_TENSOR_PARALLEL = edited(
    "commands/serve.py", '@click.option("--tensor_parallel_size", "--tp_size", type=int, default=1)\n', ""
)
FAULTS = {
    "no driver libraries": Fault("import-ranks", "libcuda.so.1", NO_DRIVER),
    "MPI that is not found": Fault(
        "import-ranks", "libmpi.so.40", mpi4py("raise ImportError('libmpi.so.40')")
    ),
    "MPI that aborts": Fault("import-ranks", "signal 6", mpi4py("import os\nos.abort()")),
    "ranks that are not joined": Fault(
        "ranks-joined", "a world of 1 in a step of 2 tasks", mpi4py("", ALONE)
    ),
    "an option less": Fault("image-parsers", "No such option", NO_TENSOR_PARALLEL),
    "a key less": Fault(
        "image-parsers",
        "max_input_len",
        edited("llmapi/llm_args.py", "max_input_len: int", "max_input_tokens: int"),
    ),
    "a front that knows no such router": Fault(
        "image-parsers",
        "Unsupported router type: load_balancing",
        edited("serve/router.py", '("round_robin", "load_balancing")', '("round_robin",)'),
        serve=PHASES,
    ),
    "no launcher": Fault(
        "image-launcher",
        "no trtllm-llmapi-launch",
        lambda site: (site.container.folder / "bin" / "trtllm-llmapi-launch").unlink(),
    ),
    "no such interface": Fault(
        "node-interface", "no interface ib9", settings=("cluster.network_interface=ib9",)
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_each_fault_is_found(site: Site, fault: Fault) -> None:
    fault.breaks(site)
    words = [word for setting in fault.settings for word in ("--set", setting)]
    found = on_nodes(rows(site, serves(site, **fault.serve), *words))
    assert found[fault.check]["state"] == fault.outcome, found
    assert fault.says in found[fault.check]["message"]
    assert found[fault.check]["hint"]


def test_faults_of_an_image_are_found_together(site: Site) -> None:
    """Four of the above at once, which the quick tests have time for."""
    for name in ("no launcher", "an option less"):
        FAULTS[name].breaks(site)
    found = on_nodes(rows(site, serves(site), "--set", "cluster.network_interface=ib9"))
    failed = {name for name, row in found.items() if row["state"] == "fail"}
    assert {"image-launcher", "image-options", "image-parsers", "node-interface"} <= failed, found


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_checks_that_were_killed(site: Site, number: signal.Signals) -> None:
    site.environment[UNATTENDED_VARIABLE] = "12"  # sbatch hands it on
    words = ("doctor", serves(site), "--cluster", site.profile, "--on-nodes")
    others = folders(site)
    with site.command("trtllm-hpc", *words) as process:
        assert eventually(lambda: site.jobs_in_queue("--states=RUNNING"), 60)
        process.send_signal(number)
        process.communicate(timeout=60)
    assert site.has_no_jobs() if number == signal.SIGINT else eventually(site.has_no_jobs, 120)
    assert eventually(lambda: folders(site) == others, 30), folders(site) - others


@pytest.mark.thorough
def test_what_it_cannot_do_is_refused(person: Person) -> None:
    job = person.job("local", model={"synthetic": "tiny-llama"}, engine={"backend": "reference"})
    local = person.types("doctor", job, "--cluster", "local", "--on-nodes")
    assert local.returncode == ExitCode.SUBMISSION and "runs jobs on this machine" in local.stderr
    assert person.types("doctor", "--on-nodes").returncode == ExitCode.USAGE
    assert person.types("doctor", job, "--nodes", "2").returncode == ExitCode.USAGE
