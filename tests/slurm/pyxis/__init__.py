"""A stand-in for pyxis, enroot and a registry in a sandbox, and an image of this machine's own programs."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.sharing import made_once
from tests.waiting import eventually
from trtllm_hpc.sandbox import Sandbox

HEADER = Path("/usr/include/slurm/spank.h")
"""Of Debian's libslurm-dev, which .ci/test installs."""

IMAGE = "registry.test#team/server:25.10"
"""In the stand-in's registry, which wants a password."""

PYTHON = "/opt/trtllm-hpc/bin/python"
"""Inside the image, and nowhere else."""

PASSWORD = "nobody-may-see-this"
"""Of the registry's only user, "anybody"."""

PLUGIN = "spank_pyxis.so"

_SOURCE = Path(__file__).parent / "stand_in.c"

_SHARED = ("/usr", "/etc/alternatives", "/etc/openmpi", "/etc/pmix", "/etc/passwd", "/etc/group")
"""What the image has of this machine."""


def obstacle() -> str | None:
    """Why the stand-in cannot be compiled here, ``None`` if it can."""
    if shutil.which("cc") is None:
        return "there is no C compiler"
    return None if HEADER.exists() else "Debian's libslurm-dev is not installed"


@dataclass
class Pyxis:
    """The stand-in, in one sandbox."""

    sandbox: Sandbox
    folder: Path
    """With the plugin, and the registry's images."""

    @property
    def _plugstack(self) -> Path:
        return Path(self.sandbox.slurm_conf).parent / "plugstack.conf"

    @property
    def data(self) -> Path:
        """On each node, as only the node sees it: its containers, and the list of what was imported."""
        return Path(self.sandbox.slurm_conf).parent.parent / "private" / "pyxis"

    def install(self, scope: str) -> None:
        """Have ``srun`` and the nodes load it from now on, with pyxis' ``container_scope``."""
        is_new = not self._plugstack.exists()
        words = [str(self.folder / PLUGIN), f"data={self.data}", f"registry={self.folder}"]
        words.append(f"spool={self.data.parent / 'spool'}")
        self._plugstack.write_text(f"required {' '.join(words)} container_scope={scope}\n")
        if is_new:
            self._restart_slurmd()

    def remove(self) -> None:
        """Have it loaded no more, and remove all containers."""
        self._plugstack.unlink(missing_ok=True)
        self._restart_slurmd()
        for node in self.sandbox.nodes:
            node.run(["rm", "-rf", str(self.data)])

    def imports(self) -> dict[str, list[str]]:
        """Of each node: a line ``JOB.STEP CONTAINER IMAGE`` for each import."""
        read = ["sh", "-c", f"cat {self.data}/imports 2>/dev/null || true"]
        return {node.name: node.run(read).splitlines() for node in self.sandbox.nodes}

    def containers(self) -> dict[str, list[str]]:
        """Of each node: the containers that it keeps."""
        read = ["sh", "-c", f"cd {self.data} 2>/dev/null && ls -d */pyxis_* | grep -v lock$ || true"]
        return {node.name: node.run(read).split() for node in self.sandbox.nodes}

    def _restart_slurmd(self) -> None:
        """Only a slurmd that starts looks whether a plugin has an epilog."""
        cluster = self.sandbox.layout
        assert cluster is not None
        for node in cluster.nodes:
            [old] = [each for each in node.processes() if each.arguments[0] == "slurmd"]
            os.kill(old.pid, signal.SIGTERM)
            assert eventually(partial(_has_ended, old.pid), 20)
            log = cluster.folder.output(f"slurmd-{node.name}")
            node.start_daemon(old.arguments, log, cluster.environment)
        assert eventually(lambda: all(cluster.node_answers(node) for node in cluster.nodes), 20)
        assert eventually(lambda: set(cluster.node_states().values()) == {"idle"}, 20), cluster.node_states()


def _has_ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def made(environment: Path) -> Path:
    """The folder with the plugin and the image.

    Args:
        environment: with the wheel of this package; it becomes /opt/trtllm-hpc in the image.
    """

    def make(folder: Path) -> None:
        folder.mkdir(mode=0o755)
        options = ["-std=gnu11", "-O1", "-Wall", "-Werror", "-fPIC", "-shared"]
        subprocess.run(["cc", *options, "-o", folder / PLUGIN, _SOURCE], check=True)
        name = IMAGE.replace("#", "_").replace("/", "_").replace(":", "_")
        write_image(folder / f"{name}.tar", environment)

    return made_once("pyxis", make)


def write_image(file: Path, environment: Path) -> None:
    """Write an image whose /etc/fstab binds this machine's programs, as enroot's images may."""
    packages = [path for path in sys.path if path.endswith("site-packages")]  # as make_environment has them
    shared = [path for path in (*packages, sys.base_prefix) if not path.startswith("/usr")]
    mounts = {path: path for path in (*_SHARED, *shared) if Path(path).exists()}
    mounts[str(environment)] = "/opt/trtllm-hpc"
    fstab = [
        f"{_escaped(source)} {_escaped(target)} none x-create=auto,rbind,ro"
        for source, target in mounts.items()
    ]
    texts = {
        "/etc/fstab": "\n".join(fstab) + "\n",
        "/etc/environment": "PATH=/usr/local/bin:/usr/bin:/bin\n",
    }
    with tarfile.open(file, "w") as tar:
        for name in ("bin", "sbin", "lib", "lib64"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
        for folder in ("usr", "etc", "proc", "sys", "dev", "tmp", "opt", "run", "var", "var/tmp"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        for path, text in texts.items():
            info = tarfile.TarInfo(path.lstrip("/"))
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))


def _escaped(path: str) -> str:
    return path.replace(" ", "\\040")
