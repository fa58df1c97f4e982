"""A path that the system refuses is told by the key that names it."""

from __future__ import annotations

import errno
import os

import pytest

from tests.config.files import CLUSTER, JOB, Folder
from trtllm_hpc.config.path_errors import path_errors
from trtllm_hpc.errors import ConfigError


@pytest.mark.parametrize(
    ("refused", "file", "key"),
    [
        ("/closed/model", "the job file", "model.path"),
        ("/closed/model/config.json", "the job file", "model.path"),
        ("/site/runs/demo-1", "the cluster profile", "runs_folder"),
        ("/site", "the cluster profile", "runs_folder"),
        ("/lustre/a", "the cluster profile", "container.mounts"),
        ("/mine/demo-1", "the command line", "--runs"),
    ],
)
def test_the_key_is_named_with_a_next_step(files: Folder, refused: str, file: str, key: str) -> None:
    cluster = f"{CLUSTER}runs_folder: /site/runs\n"
    cluster += "container: {runtime: pyxis, image: /i.sqsh, mounts: ['/lustre:/models']}\n"
    both = files.load(JOB + "model: {path: /closed/model}\n", cluster)
    with pytest.raises(ConfigError) as caught, path_errors(both.job, both.cluster, {"--runs": "/mine"}):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), refused)
    [diagnostic] = caught.value.diagnostics
    assert (diagnostic.file, diagnostic.field) == (file, key)
    assert diagnostic.message == f"{refused}: Permission denied"
    assert diagnostic.hint is not None and f"namei -l {refused}" in diagnostic.hint


def test_what_no_key_names_goes_on_as_it_is(files: Folder) -> None:
    both = files.load()
    for error in (OSError(errno.ENOSPC, "full"), PermissionError(errno.EACCES, "no", "/else")):
        with pytest.raises(OSError) as caught, path_errors(both.job, both.cluster):
            raise error
        assert caught.value is error
