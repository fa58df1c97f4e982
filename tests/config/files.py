"""Loading files that a test writes, and looking at what is found in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.validation.load import load

JOB = "name: demo\n"
CLUSTER = "name: here\n"


class Folder:
    """A job file and a profile in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job_file = folder / "job.yaml"
        self.cluster_file = folder / "cluster.yaml"

    def load(self, job: str = JOB, cluster: str = CLUSTER, *settings: str) -> JobFacts:
        """Write both and load them."""
        self.job_file.write_text(job, encoding="utf-8")
        self.cluster_file.write_text(cluster, encoding="utf-8")
        return load(self.job_file, str(self.cluster_file), settings)

    def diagnostics(self, job: str = JOB, cluster: str = CLUSTER, *settings: str) -> list[Diagnostic]:
        """What loading finds wrong; the test fails where that is nothing."""
        with pytest.raises(ConfigError) as caught:
            self.load(job, cluster, *settings)
        return list(caught.value.diagnostics)

    def diagnostic(self, job: str = JOB, cluster: str = CLUSTER, *settings: str) -> Diagnostic:
        """The one thing that is wrong."""
        found = self.diagnostics(job, cluster, *settings)
        assert len(found) == 1, "\n".join(map(str, found))
        return found[0]

    def place(self, diagnostic: Diagnostic) -> str:
        """``job:3 engine.dtype``: short enough for a table of expectations."""
        names = {str(self.job_file): "job", str(self.cluster_file): "cluster"}
        file = names.get(diagnostic.file, diagnostic.file)
        where = file if diagnostic.line is None else f"{file}:{diagnostic.line}"
        return f"{where} {diagnostic.field}"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    # A person's own profiles must not reach the tests.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TRTLLM_HPC_SITE", str(tmp_path / "site"))
    return Folder(tmp_path)
