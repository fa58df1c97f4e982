"""A folder with upstream's programs, as a profile without a container can use it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.upstream.llm_api import LAUNCHER, NODES, SERVE
from trtllm_hpc.runtime.servers.triton import WHEEL, find_server

PROGRAMS = Path(__file__).with_name("programs.py")
BACKEND = Path(__file__).with_name("backend")
TINY = Path(__file__).parent / "tiny" / "tensorrt_llm"


@dataclass(frozen=True)
class FakeContainer:
    """Where the stand-ins of one release lie."""

    folder: Path
    release: str
    python: Path
    """Has this package: the programs look up their options in it."""

    @property
    def calls(self) -> Path:
        """One JSON line for each program that was started: its name and its words."""
        return self.folder / "calls.jsonl"

    @property
    def package(self) -> Path:
        """The package ``tensorrt_llm``, if there is one."""
        return self.folder / "site" / "tensorrt_llm"

    def profile(self) -> dict[str, Any]:
        """The keys of a cluster profile that make jobs find it."""
        programs, site = shlex.quote(str(self.folder / "bin")), shlex.quote(str(self.folder / "site"))
        return {
            "container": {
                "tensorrt_llm_version": self.release,
                "examples": str(self.folder / "examples"),
                "all_models": str(self.folder / "all_models"),
            },
            "setup": [f'export PATH={programs}:"$PATH"', f"export PYTHONPATH={site}"],
        }


def make_container(
    folder: Path, release: str, families: tuple[str, ...] = ("llama",), python: Path = Path(sys.executable)
) -> FakeContainer:
    """Lay out the programs of a release, and its package's metadata."""
    made = FakeContainer(folder, release, python)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(PROGRAMS, folder)
    for family in families:
        _program(made, folder / "examples" / family / "convert_checkpoint.py", family)
        _program(made, folder / "examples" / family / "build.py", family)
    _program(made, folder / "examples" / "quantization" / "quantize.py", "llama")
    _program(made, folder / "examples" / "hf_lora_convert.py", "llama")
    _program(made, folder / "bin" / "trtllm-build", "llama")
    metadata = folder / "site" / f"tensorrt_llm-{release}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {release}\n", encoding="utf-8")
    return made


def add_server(container: FakeContainer, folder: Path) -> Path:
    """Make a ``tritonserver`` that has the backend ``tensorrtllm``, see ``backend/``; returns the program.

    Args:
        folder: a new one, whose name a shell need not quote: Triton's Python backend does not.
    """
    shutil.copytree(BACKEND, folder, ignore=shutil.ignore_patterns("__pycache__"))
    [program_of_wheel, *_], variables = find_server(WHEEL, folder)
    links, backends = folder / "backends", folder / "copies"
    # The server refuses the library of a Python-based backend behind a link.
    shutil.copytree(links, backends)
    (backends / "tensorrtllm").mkdir()
    shutil.move(folder / "model.py", backends / "tensorrtllm")
    # Copies find no libraries beside them.
    wheel = Path(program_of_wheel).parents[3]
    libraries = [*map(str, wheel.glob("nvidia_pytriton.libs")), variables["LD_LIBRARY_PATH"]]
    environment = {
        "PATH": f"{container.python.parent}{os.pathsep}{variables['PATH']}",
        "LD_LIBRARY_PATH": os.pathsep.join(libraries),
    }
    arguments = [f"--backend-directory={backends}"]
    record = {"program": program_of_wheel, "arguments": arguments, "environment": environment}
    (folder / "server.json").write_text(json.dumps(record), encoding="utf-8")
    program = folder / "tritonserver"
    words = shlex.join([str(container.python), str(folder / "server.py")])
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program


def add_llm_api(container: FakeContainer, launcher: Path = LAUNCHER) -> None:
    """Put ``trtllm-serve`` and a launcher into the container, see ``llm_api/``."""
    programs = container.folder / "bin"
    shutil.copy(launcher, programs / LAUNCHER.name)
    shutil.copy(NODES, programs)
    shutil.copy(SERVE, programs)
    serve = programs / "trtllm-serve"
    words = shlex.join([str(container.python), str(programs / SERVE.name)])
    serve.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    serve.chmod(0o755)


def add_package(container: FakeContainer) -> None:
    """Put the importable stand-in of ``tensorrt_llm`` (``tiny/``) there; its server only parses."""
    shutil.copytree(TINY, container.package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TINY.parents[1] / "image_package.py", container.package / "__init__.py")
    serve = container.folder / "bin" / "trtllm-serve"
    words = shlex.join([str(container.python), "-m", "tensorrt_llm.commands.serve"])
    serve.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    serve.chmod(0o755)


def _program(container: FakeContainer, file: Path, family: str) -> None:
    """A Python file that ``python3 FILE`` and FILE itself run, as upstream's are."""
    file.parent.mkdir(parents=True, exist_ok=True)
    program = container.folder / PROGRAMS.name
    words = [str(container.python), str(program), container.release, family, str(container.calls), file.name]
    if file.suffix == ".py":
        text = f"import os, sys\n\nos.execv({words[0]!r}, {words!r} + sys.argv[1:])\n"
    else:
        text = f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'
    file.write_text(text, encoding="utf-8")
    file.chmod(0o755)
