"""What sinfo and srun print, by version and by site."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.scheduler.discovery import gpus_in, minutes_of, query_cluster


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", 0),
        ("gpu:4", 4),
        ("gpu", 1),
        ("gpu:a100:8(S:0-1)", 8),
        ("gpu:a100:2(S:0),gpu:v100:1(S:1),tmpdisk:100", 3),
        ("shard:8,gpu:h100:4", 4),
        ("gpu:a100", 1),
        ("gpu:a100:2,gpu:a100_3g.20gb:2(S:0)", 2),
        ("nvme:2", 0),
        ("", 0),
    ],
)
def test_gpus_of_a_node(gres: str, gpus: int) -> None:
    assert gpus_in(gres) == gpus


def fake_slurm(
    folder: Path, monkeypatch: pytest.MonkeyPatch, sinfo: str, srun: str, help_text: str = ""
) -> None:
    """``sinfo`` and ``srun --mpi=list`` that run these lines of sh, and refuse any other question.

    Args:
        help_text: what ``srun --help`` prints.
    """
    asked = {"sinfo": "--noheader --format=%P|%D|%G|%c|%m|%l", "srun": "--mpi=list"}
    for name, lines in (("sinfo", sinfo), ("srun", srun)):
        script = folder / name
        helps = f'[ "$*" = --help ] && echo "{help_text}" && exit\n' if name == "srun" else ""
        script.write_text(f'#!/bin/sh\n{helps}[ "$*" = "{asked[name]}" ] || exit 99\n{lines}\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_CONF", raising=False)


PARTITIONS = "printf '%s\\n' 'cpu*|10|(null)|64|256000+|1-00:00:00' 'gpu|4|gpu:a100:8|128|1000000|infinite'"
OLD_LIST = "printf 'srun: MPI types are...\\nsrun: none\\nsrun: pmi2\\nsrun: pmix_v3\\n' >&2"
NEW_LIST = (
    "printf 'MPI plugin types are...\\n\\tpmix\\n\\tnone\\n\\tpmi2\\n"
    "specific pmix plugin versions available: pmix_v4,pmix_v5\\n'"
)


def test_the_partition_with_gpus_goes_before_the_default_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_slurm(tmp_path, monkeypatch, PARTITIONS, NEW_LIST)
    facts = query_cluster()
    assert [(it.name, it.is_default, it.gpus_per_node) for it in facts.partitions] == [
        ("cpu", True, 0),
        ("gpu", False, 8),
    ]
    assert facts.chosen is not None and facts.chosen.name == "gpu"


@pytest.mark.parametrize(
    ("listing", "plugins", "chosen"),
    [
        (NEW_LIST, ("pmix", "pmi2", "pmix_v4", "pmix_v5"), "pmix"),
        (OLD_LIST, ("pmi2", "pmix_v3"), "pmix_v3"),
        (
            "printf 'MPI plugin types are...\\n\\tnone\\n\\tpspmi\\n\\tpspmix\\n'",
            ("pspmi", "pspmix"),
            "pspmix",
        ),
        ("echo 'MPI plugin types are...'; echo pmi2", ("pmi2",), None),
    ],
)
def test_mpi_plugins_of_old_and_new_slurm(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    listing: str,
    plugins: tuple[str, ...],
    chosen: str | None,
) -> None:
    fake_slurm(tmp_path, monkeypatch, PARTITIONS, listing)
    facts = query_cluster()
    assert (facts.mpi_plugins, facts.chosen_mpi) == (plugins, chosen)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("30", 30),
        ("30:15", 30),
        ("02:30:00", 150),
        ("2-00:00:00", 2880),
        ("1-12", 2160),
        ("1-12:30", 2190),
        ("UNLIMITED", None),
        ("INFINITE", None),
        ("", None),
    ],
)
def test_times_as_slurm_writes_them(text: str, minutes: int | None) -> None:
    assert minutes_of(text) == minutes


def test_a_command_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_slurm(
        tmp_path, monkeypatch, "echo 'sinfo: error: Unable to contact slurm controller' >&2; exit 1", "true"
    )
    with pytest.raises(SubmissionError, match="Unable to contact slurm controller"):
        query_cluster()
