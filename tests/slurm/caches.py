"""A build whose program, in the image, writes into ``~`` and into each cache."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.slurm.conftest import Person
from trtllm_hpc.runtime.caches import CACHES

_NAMES = list(CACHES)
_WRITES = """
import os, pathlib, sys
for name in sys.argv[1:]:
    file = pathlib.Path(os.path.expanduser("~") if name == "HOME" else os.environ[name], "written")
    print(name, file, "again" if file.exists() else "first", flush=True)
    file.write_text(name)
"""

ANOTHER_ENGINE = ("--set", "engine.max_batch_size=3")
"""So that a second build is not left out."""


def written(person: Person, job: Path, python: str, *words: str) -> dict[str, tuple[str, str]]:
    """Run the build of a job; returns by variable the file that was written, and whether it was there before.

    Args:
        python: in the image.
    """
    _, run = person.render(job, *words)
    build = run.folder / "scripts" / "build.sh"
    probe = shlex.join([python, "-c", _WRITES, *_NAMES])
    build.write_text(build.read_text().replace("set -euo pipefail\n", f"set -euo pipefail\n{probe}\n", 1))
    person.slurm("sbatch", "--wait", run.sbatch("build"))
    lines = [line.split() for line in run.rank_log("build", 0).read_text().splitlines()]
    return {words[0]: (words[1], words[2]) for words in lines if len(words) == 3 and words[0] in _NAMES}
