"""Ranks on a Slurm whose srun has no PMIx: Open MPI's own launcher joins them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.conftest import Person
from tests.slurm.test_backbone import assert_served_and_measured, two_ranks

pytestmark = pytest.mark.slurm

WITHOUT_PMIX = """#!/bin/bash
case "$*" in
  *--mpi=list*) printf 'MPI plugin types are...\\n\\tnone\\n\\tpmi2\\n' ;;
  *--mpi=pmix*) echo "srun: error: Couldn't find the specified plugin name for mpi/pmix" >&2; exit 1 ;;
  *) exec SRUN "$@" ;;
esac
"""
"""An srun as of a Slurm that was built without PMIx; all else is the sandbox's own."""


@pytest.fixture
def no_pmix(person: Person) -> None:
    """Have the person, and the jobs that they submit, find such an srun first."""
    tools = person.folder / "no-pmix"
    tools.mkdir(exist_ok=True)
    srun = tools / "srun"
    srun.write_text(WITHOUT_PMIX.replace("SRUN", str(shutil.which("srun"))))
    srun.chmod(0o755)
    person.environment["PATH"] = f"{tools}:{person.bin}:{os.environ['PATH']}"


@pytest.fixture
def domain(person: Person) -> Iterator[None]:
    """Have each node call itself by a name with a domain, as many sites do."""
    nodes = person.sandbox.nodes
    for node in nodes:
        node.run(["hostname", f"{node.name}.cluster.example"])
    yield
    for node in nodes:
        node.run(["hostname", node.name])


@pytest.mark.thorough  # an orchestrator's server is started by mpirun, too
@pytest.mark.usefixtures("no_pmix", "domain")
def test_mpirun_joins_the_ranks_where_srun_cannot(person: Person, engine: Path) -> None:
    job = person.job("mpirun", **two_ranks(engine))
    said, run = person.submit(job)
    assert "mpi-plugin" in said and "mpirun" in said
    assert_served_and_measured(run)
    assert "srun has no MPI plugin pmix: mpirun starts the ranks" in run.batch_log("serve").read_text()
    for rank in range(2):
        assert f"preflight: rank {rank} of 2" in run.rank_log("preflight", rank).read_text()
        assert run.rank_log("serve", rank).read_text().startswith(f"rank {rank} on")
    assert not list(run.folder.glob("mpirun.*"))
    person.has_nothing_left()
