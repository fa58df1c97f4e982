"""Taking upstream's model templates out of an image, once: one task that prints them."""

from __future__ import annotations

import base64
import binascii
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.render.environment import render_template

USUAL_FOLDERS = ("/app/all_models", "/tensorrtllm_backend/all_models")
"""Where images, and upstream's own instructions, have the templates."""

TASK_MINUTES = 60
"""Time limit of the task; the first use of a registry's image downloads it."""


def take_templates(cluster: ClusterProfile, *, here: bool, wait_s: float, called: str) -> tuple[bytes, str]:
    """The templates as a ``tar.gz``, and the folder that they were in.

    Args:
        here: run the image on this machine instead of under Slurm.
        wait_s: bound on all of it, the wait in the queue included.
        called: how the profile was named on the command line.

    Raises:
        SubmissionError: the task could not run, or found no templates.
    """
    script = render_template("scripts/templates.sh.j2", folders=_folders(cluster))
    inside = ["bash", "-c", script]
    with_slurm = cluster.scheduler == "slurm" and not here
    command = [*_srun(cluster), *_enter(cluster, inside)] if with_slurm else _run_here(cluster, inside)
    doctor = f"trtllm-hpc doctor --cluster {shlex.quote(called)}" if with_slurm else None
    answer = _run(command, cluster, wait_s, doctor)
    said = answer.stderr.decode(errors="replace").strip()
    if answer.returncode:
        looked = "no folder of model templates here" in said
        hint = "set container.all_models in the profile, or copy them yourself and type --from FOLDER"
        raise SubmissionError(
            f"{command[0]} ended with exit code {answer.returncode}: {said or 'without a word'}",
            # Where the task never began, no other folder in the image would help.
            hint=hint
            if looked or doctor is None
            else f"{doctor}; or copy them yourself and type --from FOLDER",
        )
    try:
        archive = base64.b64decode(answer.stdout, validate=False)
    except binascii.Error:
        archive = b""
    if not archive:
        raise SubmissionError(f"{command[0]} printed no templates: {said or 'nor anything else'}")
    # srun and the container's runtime have words of their own around it.
    found = re.search(r"^templates: (.+)$", said, re.MULTILINE)
    return archive, found[1] if found is not None else "the image"


def _folders(cluster: ClusterProfile) -> Sequence[str]:
    chosen = cluster.container.all_models
    return (chosen,) if chosen is not None else USUAL_FOLDERS


def _srun(cluster: ClusterProfile) -> list[str]:
    options = {
        "--partition": cluster.partition,
        "--account": cluster.account,
        "--qos": cluster.qos,
        "--reservation": cluster.reservation,
        "--constraint": cluster.constraint,
    }
    named = [f"{name}={value}" for name, value in options.items() if value is not None]
    fixed = [
        "--job-name=trtllm-hpc-templates",
        "--nodes=1",
        "--ntasks=1",
        "--mpi=none",
        f"--time={TASK_MINUTES}",
    ]
    return ["srun", *fixed, *named, *cluster.srun_options]


def _enter(cluster: ClusterProfile, inside: Sequence[str]) -> list[str]:
    container = cluster.container
    mounts = [word for mount in container.mounts for word in ("--bind", mount)]
    if container.runtime == "pyxis":
        words = [f"--container-image={container.image}", "--no-container-mount-home"]
        if container.mounts:
            words.append(f"--container-mounts={','.join(container.mounts)}")
        return [*words, *container.options, *inside]
    if container.runtime == "apptainer":
        return ["apptainer", "exec", *mounts, *container.options, str(container.image), *inside]
    return list(inside)


def _run_here(cluster: ClusterProfile, inside: Sequence[str]) -> list[str]:
    """The command that runs the image on this machine.

    Raises:
        SubmissionError: nothing here can run it.
    """
    container = cluster.container
    if container.runtime != "pyxis":
        return _enter(cluster, inside)
    image = str(container.image)
    if image.startswith("/") and shutil.which("enroot"):
        return ["enroot", "start", image, *inside]
    if not image.startswith("/") and shutil.which("docker"):
        # enroot writes the registry before a '#' (enroot import, docker://REGISTRY#IMAGE).
        return ["docker", "run", "--rm", "--entrypoint", "", image.replace("#", "/", 1), *inside]
    raise SubmissionError(
        f"Neither enroot nor docker on this machine can run {image}.",
        hint="leave --here out to run it under Slurm, or type --from FOLDER",
    )


def _run(
    command: Sequence[str], cluster: ClusterProfile, wait_s: float, doctor: str | None
) -> subprocess.CompletedProcess[bytes]:
    # Inside somebody's allocation srun would start a step of that job, with its options.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))
    }
    conf = cluster.slurm_conf or os.environ.get("SLURM_CONF")
    if conf is not None:
        environment["SLURM_CONF"] = conf
    try:
        return subprocess.run(
            command,
            env=environment,
            capture_output=True,
            timeout=wait_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError:
        raise SubmissionError(
            f"There is no {command[0]} on this machine.",
            hint=f"{doctor or 'run this where it is'}; or copy the templates yourself and type --from FOLDER",
        ) from None
    except subprocess.TimeoutExpired:
        raise SubmissionError(
            f"The templates were not here after {wait_s:.0f} s.",
            hint="squeue --me (does the task wait?), then the same command with a longer --wait-minutes",
            transient=True,
        ) from None
