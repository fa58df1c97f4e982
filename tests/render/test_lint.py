"""Every script of the golden cases is valid bash, and clean for shellcheck; hostile text is quoted."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.render.cases import CASES, plan_of, render_case
from trtllm_hpc.render.scripts import render_scripts


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """All distinct scripts of the golden cases, as files."""
    folder = tmp_path_factory.mktemp("scripts")
    texts = set()
    for name in CASES:
        texts |= {text for file, text in render_case(name).items() if file.endswith((".sh", ".sbatch"))}
    files = []
    for number, text in enumerate(sorted(texts)):
        file = folder / f"{number}.sh"
        file.write_text(text, encoding="utf-8")
        files.append(file)
    assert len(files) > 50
    return files


def test_bash_parses_every_script(scripts: list[Path]) -> None:
    for script in scripts:
        answer = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
        assert answer.returncode == 0, f"{answer.stderr}\n{script.read_text()}"


@pytest.mark.long
@pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason="shellcheck is not installed (make setup does)"
)
def test_shellcheck_has_nothing_to_say(scripts: list[Path]) -> None:
    # SC2016: "$(...) does not expand in single quotes". The hostile names are there to prove just that.
    answer = subprocess.run(
        ["shellcheck", "--exclude=SC2016", *map(str, scripts)], capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stdout


_RECORDER = """import json, os, sys
del sys.argv[0]
if "leader" in sys.argv:
    print("127.0.0.1 1 2 3 4")
record = {"argv": sys.argv, "note": os.environ.get("NOTE")}
if "--prompt=-" in sys.argv:
    record["prompt"] = sys.stdin.read()
with open(os.environ["CALLS"], "a") as calls:
    print(json.dumps(record), file=calls)
"""


def test_hostile_text_arrives_unharmed_and_is_never_run(tmp_path: Path) -> None:
    owned = tmp_path / "owned"
    text = f'it\'s "x" $(touch {owned}) `touch {owned}` \\ é ; touch {owned}\n#SBATCH --nodes=9'
    tools = tmp_path / "it's $(tools)"
    tools.mkdir()
    recorder = tmp_path / "recorder.py"
    recorder.write_text(_RECORDER)
    words = shlex.join([sys.executable, "-I", "-S", str(recorder)])
    for name in ("python", "srun"):
        (tools / name).write_text(f'#!/bin/sh\nexec {words} "$0" "$@"\n')
        (tools / name).chmod(0o755)
    folder = tmp_path / f"$(touch {owned})" / "it's"
    folder.mkdir(parents=True)
    plan = plan_of(
        {
            "name": "a",
            "companion": {"request": {"prompt": text}},
            "model": {"path": f"/m/{owned.name} $(id)"},
        },
        {"name": "x", "environment": {"NOTE": text}, "python": str(tools / "python")},
        str(folder),
    )
    calls = tmp_path / "calls"
    job = f"test{os.getpid()}"
    rendered = render_scripts(plan)
    for name in (name for name in rendered if not name.startswith("haproxy")):
        file = tmp_path / name
        file.write_text(rendered[name], encoding="utf-8")
        environment = {"PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(calls), "SLURM_JOB_ID": job}
        environment |= {"SLURM_PROCID": "0", "TRTLLM_HPC_JOB_ID": job, "TRTLLM_HPC_INSTANCE": "0"}
        environment |= {"TRTLLM_HPC_SOCKETS": str(tmp_path / "sockets")}
        environment["output"] = text
        arguments = ["engine"]
        if name == "instance.sh":  # started from serve.sbatch, whose environment it has
            arguments, environment["NOTE"], environment["TRTLLM_HPC_MPI"] = ["0"], text, "srun"
        if name == "mpirun.sh":  # started by mpirun, for one rank
            arguments = ["--rank", "serve", "true"]
            environment |= {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
            environment["OMPI_COMM_WORLD_SIZE"] = "1"
            (folder / "logs").mkdir(exist_ok=True)
        answer = subprocess.run(
            ["bash", str(file), *arguments], env=environment, capture_output=True, text=True, timeout=30
        )
        assert answer.returncode == 0, (name, answer.stderr)
    for scratch in Path("/tmp").glob(f"trt{job}_0_*"):  # the rank's, which the real runtime removes
        shutil.rmtree(scratch)
    assert not owned.exists()
    seen = [json.loads(line) for line in calls.read_text().splitlines()]
    assert [call["prompt"] for call in seen if "prompt" in call] == [f"{text}\n"]
    assert any({f"/m/{owned.name} $(id)", text} < set(call["argv"]) for call in seen)  # the build
    assert all(call["note"] == text for call in seen if call["argv"][0].endswith("srun"))


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed (.ci/test does)")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if plan_of(*case, "/run").has_proxy])
def test_haproxy_takes_its_configurations(name: str, tmp_path: Path) -> None:
    files = {file: text for file, text in render_case(name).items() if file.startswith("haproxy")}
    assert files
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ("-subj", "/CN=x", "-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "crt"))
    subprocess.run([*made, *names], check=True, capture_output=True)
    certificate = tmp_path / "certificate.pem"
    certificate.write_text((tmp_path / "key").read_text() + (tmp_path / "crt").read_text())
    for file in ("key.map", "guests.map", "run-key"):
        (tmp_path / file).write_text("key secret\n")
    known = {
        "TRTLLM_HPC_ADDRESS": "127.0.0.1",
        "TRTLLM_HPC_PROXY": str(tmp_path),
        "TRTLLM_HPC_PROXY_THREADS": "1",
        "TRTLLM_HPC_PROXY_CONNECTIONS": "100",
        "TRTLLM_HPC_KEY": str(tmp_path / "run-key"),
        "TRTLLM_HPC_CERTIFICATE": str(tmp_path / "crt"),
        "TRTLLM_HPC_CERTIFICATE_KEY": str(certificate),
    }
    for file, text in files.items():
        (tmp_path / file).write_text(text)
        found = re.findall(r"TRTLLM_HPC_\w+", text)
        # Of the instances: their sockets, and the ports of the frontends.
        others = {each: "30001" if "_PORT_" in each else "unix@/tmp/s" for each in found}
        answer = subprocess.run(
            ["haproxy", "-c", "-f", str(tmp_path / file)],
            env={**os.environ, **others, **known},
            capture_output=True,
            text=True,
        )
        assert answer.returncode == 0 and "WARNING" not in answer.stderr, answer.stderr
