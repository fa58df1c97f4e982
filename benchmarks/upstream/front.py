"""Upstream's own front before servers behind our proxy: ``python -m benchmarks.upstream.front FOLDER``.

FOLDER holds the Python files of TensorRT-LLM, as for ``python -m benchmarks.upstream``; it takes root and
Debian's Slurm. On a sandbox of four nodes a disaggregated job starts a context server and three generation
servers (stand-ins: each answers with its prompt's words) behind HAProxy, TLS and the run's key. The front
before them is ``trtllm-serve disaggregated`` of FOLDER. Clients ask all the time while a generation server is
killed and comes back; then the front is killed. The exit code is 1 if one of them does not come back.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.faults.site import site
from benchmarks.faults.ways import with_upstream
from benchmarks.upstream import stubs
from tests.slurm.test_openai import SPLIT, TWO_RANKS, asks, process_of, restarts, under_load
from tests.slurm.upstream_site import Site
from tests.waiting import eventually
from trtllm_hpc.runtime.records import read_events

_FRONT = """
import sys, time
from datetime import timedelta
from pathlib import Path
sys.path.insert(0, {programs!r})
from stubs import importable
with importable(Path({folder!r})):
    from tensorrt_llm.commands.serve import disaggregated
    from tensorrt_llm.serve import responses_utils
    responses_utils.steady_clock_now = lambda: timedelta(seconds=time.monotonic())  # of C++
    disaggregated.main(sys.argv[2:])
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.upstream.front", description=__doc__.split("\n")[0]
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="with tensorrt_llm/ in it")
    copy = parser.parse_args(argv).folder
    try:
        print(f"TensorRT-LLM {stubs.version_of(copy)}")
    except stubs.CannotImport as error:
        print(error, file=sys.stderr)
        return 2
    with site("front", (1,), nodes=4) as made, with_upstream(made.person("user"), made.engines[1]) as person:
        _put_front(person, copy)
        return _observe(person)


def _put_front(site: Site, copy: Path) -> None:
    """Have ``trtllm-serve disaggregated`` be upstream's, by this Python, and the servers be the stand-ins."""
    programs = site.container.folder / "bin"
    shutil.copytree(copy / "tensorrt_llm", site.container.folder / "upstream" / "tensorrt_llm")
    shutil.copy(stubs.__file__, programs)
    front, serve = programs / "front.py", programs / "trtllm-serve"
    front.write_text(_FRONT.format(folder=str(site.container.folder / "upstream"), programs=str(programs)))
    python = shlex.join([sys.executable, str(front)])
    serve.write_text(
        serve.read_text().replace("exec ", f'[ "$1" != disaggregated ] || exec {python} "$@"\nexec ', 1)
    )
    for path in (programs, site.container.folder / "upstream"):
        path.chmod(0o755)


def _observe(site: Site) -> int:
    phases = {"context": {"tensor_parallel": 1}, "generation": {"servers": 3, "tensor_parallel": 1}}
    serve = {**SPLIT, "tls": True, "nodes": None, "disaggregated": phases}
    job = site.job("front", repository={}, engine=TWO_RANKS, serve=serve, companion={"enabled": False})
    _, run = site.submit(job, wait=False)
    if not eventually(run.endpoint.exists, 240):
        print(site.status(run)["sentence"], run.rank_log("front", 0).read_text()[-4000:], sep="\n")
        return 1
    first = asks(run)
    print(f"first answer: {first or 'right'}")
    with under_load(run) as failures:
        os.kill(process_of(site, "llm_api.generation.yaml", node=2), signal.SIGKILL)
        is_back = eventually(lambda: restarts(site, run)[2] == "ready 1", 90)
        log = run.rank_log("serve.2", 0)
        before = log.read_text().count("generation after")
        is_asked = eventually(lambda: log.read_text().count("generation after") > before, 30)
    end = "; ".join(it.data["why"] for it in read_events(run, "serve") if it.name == "instance_end")
    print(f"generation server: {end}; back: {bool(is_back)}, asked again: {bool(is_asked)}")
    print(f"requests that failed meanwhile: {len(failures)}", *failures[:3], sep="\n  ")
    began = time.monotonic()
    os.kill(process_of(site, "disaggregated", node=0), signal.SIGKILL)
    front_back = eventually(lambda: site.status(run)["front_restarts"] != [] and asks(run) is None, 90)
    print(f"front: back: {bool(front_back)}, an answer after {time.monotonic() - began:.0f} s")
    site.cancel(run)
    return 0 if first is None and is_back and is_asked and front_back else 1


if __name__ == "__main__":
    raise SystemExit(main())
