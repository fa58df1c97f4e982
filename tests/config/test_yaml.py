"""What is not plain YAML 1.2 is refused with a place, and never run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.config.files import JOB, Folder
from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.validation.load import load

BOMB = "a: &a [x, x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("engine:\n\ttensor_parallel: 2\n", "bad-yaml", 2),
        ("name: [1, 2\nmodel: {}\n", "bad-yaml", 2),
        ("name: 'open\n", "bad-yaml", 2),
        ("name: a: b\n", "bad-yaml", 1),
        ("name: a\n---\nname: b\n", "bad-yaml", 2),
        ("%YAML 1.1\n---\nname: a\n", "bad-yaml", 1),
        (BOMB, "bad-yaml", 2),
        ("name: a\nmodel: &x\n  path: *x\n", "bad-yaml", 3),
        ("name: a\nmodel: !!python/object/apply:os.system ['touch pwned']\n", "bad-yaml", 2),
        ("name: !!str 5\n", "bad-yaml", 1),
        ("name: a\nserve: \x07\n", "bad-yaml", 2),
        ('name: "\\ud800"\n', "bad-yaml", 1),
        ('name: "\\UFFFFFFFF"\n', "bad-yaml", 1),
        ("1: 2\n", "wrong-type", 1),
        ("name: a\n? [b]\n: c\n", "wrong-type", 2),
        ("- name: a\n", "wrong-type", 1),
        ("just words\n", "wrong-type", 1),
        ("name: a\nmodel: " + "[" * 5000 + "\n", "too-large", 2),
    ],
)  # fmt: skip
def test_bad_yaml_has_a_code_and_a_line(files: Folder, text: str, code: str, line: int) -> None:
    diagnostic = files.diagnostic(text)
    assert (diagnostic.code, diagnostic.file, diagnostic.line) == (code, str(files.job_file), line)


def test_tabs_are_named_as_such(files: Folder) -> None:
    assert "spaces" in (files.diagnostic("engine:\n\ttensor_parallel: 2\n").hint or "")


def test_yaml_1_2_leaves_words_and_times_alone(files: Folder) -> None:
    cluster = "name: on\npartition: 08:00\naccount: yes\nqos: 1_000\nsetup: [y, 2001-01-01, ~/x, <<, '012']\n"
    profile = files.load(JOB, cluster).cluster
    assert (profile.name, profile.partition, profile.account, profile.qos) == ("on", "08:00", "yes", "1_000")
    assert profile.setup == ["y", "2001-01-01", "~/x", "<<", "012"]


def test_a_file_may_begin_with_a_byte_order_mark_and_have_windows_line_ends(files: Folder) -> None:
    files.load()
    files.job_file.write_bytes(b"\xef\xbb\xbfname: a\r\nserve:\r\n  nodes: 1\r\n")
    assert load(files.job_file, str(files.cluster_file)).job.serve.nodes == 1


def _only_finding(job_file: Path, cluster: str = "local") -> Diagnostic:
    with pytest.raises(ConfigError) as caught:
        load(job_file, cluster)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


@pytest.mark.parametrize(
    ("raw", "code", "line"),
    [
        (b"name: a\nmodel: \xff\xfe\n", "bad-yaml", 2),
        ("name: a\n".encode("utf-16"), "bad-yaml", 1),
        (bytes(range(256)) * 4, "bad-yaml", None),
        (b"\x7fELF\x02\x01\x01\0\0\0", "bad-yaml", 1),
        (b"", "missing", 1),
        (b"# nothing but a comment\n", "missing", 1),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, raw: bytes, code: str, line: int | None) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(raw)
    diagnostic = _only_finding(path)
    assert diagnostic.code == code
    assert line is None or diagnostic.line == line


def test_a_folder_a_pipe_a_device_and_nothing_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    found = {
        name: _only_finding(Path(name)).code
        for name in (str(tmp_path), str(tmp_path / "pipe"), "/dev/zero", str(tmp_path / "none"),
                     str(tmp_path / "loop"), "a\0b", "x" * 5000)
    }  # fmt: skip
    assert list(found.values()) == [
        "unreadable", "unreadable", "unreadable", "not-found", "unreadable", "not-found", "unreadable",
    ]  # fmt: skip


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    path.chmod(0)
    assert _only_finding(path).code == "unreadable"
