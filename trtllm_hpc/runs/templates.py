"""Upstream's model templates: extracting them from an image, and a job's finished config.pbtxt files."""

from __future__ import annotations

import base64
import binascii
import os
import re
import shlex
import subprocess
from collections.abc import Sequence

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.errors import RenderError, SubmissionError
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.render.environment import render_template
from trtllm_hpc.render.scripts import render_repository
from trtllm_hpc.render.templates_cache import find_templates
from trtllm_hpc.runtime.model_repository.recipe import RepositoryRecipe
from trtllm_hpc.runtime.model_repository.repository import CONFIG, render_models
from trtllm_hpc.scheduler.slurm import run_command
from trtllm_hpc.validation.load import load_cluster

USUAL_FOLDERS = ("/app/all_models", "/tensorrtllm_backend/all_models")
"""Folders of the templates in NVIDIA's images and in upstream's own instructions."""

TASK_MINUTES = 60
"""Time limit of the task, and of the wait for it; the first use of a registry's image downloads it."""


def extract_templates(cluster: ClusterProfile, *, profile_name: str) -> tuple[bytes, str]:
    """Return the templates of the profile's image as a ``tar.gz``, and the folder that they were in.

    One task prints them inside the container; with the profile ``local`` a process of this machine. Raises
    SubmissionError if the task could not run, or found no templates.

    Args:
        profile_name: the profile as named on the command line, for the next command.
    """
    chosen = cluster.container.all_models
    folders = (chosen,) if chosen is not None else USUAL_FOLDERS
    inside = ["bash", "-c", render_template("scripts/templates.sh.j2", folders=folders)]
    with_slurm = cluster.scheduler == "slurm"
    doctor = f"trtllm-hpc doctor --cluster {shlex.quote(profile_name)}" if with_slurm else None
    command = [*(_srun(cluster) if with_slurm else ()), *_in_container(cluster, inside)]
    answer = _run(command, cluster, doctor)
    messages = answer.stderr.strip()
    if answer.returncode:
        searched = "no folder of model templates here" in messages
        hint = "set container.all_models in the profile, or copy them yourself and type --from FOLDER"
        if not searched and doctor is not None:
            # The task never began: naming another folder in the image would not help.
            hint = f"{doctor}; or copy them yourself and type --from FOLDER"
        raise SubmissionError(
            f"{command[0]} ended with exit code {answer.returncode}: {messages or 'it printed no message'}",
            hint=hint,
        )
    try:
        archive = base64.b64decode(answer.stdout, validate=False)
    except binascii.Error:
        archive = b""
    if not archive:
        raise SubmissionError(f"{command[0]} printed no templates: {messages or 'nor any message'}")
    # srun and the container's runtime print lines of their own around it.
    found = re.search(r"^templates: (.+)$", messages, re.MULTILINE)
    return archive, found[1] if found is not None else "the image"


def finished_configs(plan: Plan, profile_name: str) -> dict[str, str]:
    """Return each model's ``config.pbtxt`` as ``submit`` would write it; raises RenderError."""
    if not isinstance(plan.repository, RepositoryRecipe):
        files = render_repository(plan)
        return {path.split("/")[0]: text for path, text in files.items() if path.endswith("config.pbtxt")}
    templates = find_templates(plan.cluster)
    if templates is None:
        image = plan.cluster.container.image
        command = ["trtllm-hpc", "templates", "fetch", "--cluster", profile_name]
        if image is not None and image != load_cluster(profile_name).container.image:
            command += ["--set", f"cluster.container.image={image}"]
        raise RenderError(
            f"The templates of {image or 'this profile'} are not on this machine.",
            hint=f"{shlex.join(command)}, then the same command",
        )
    models = render_models(plan.repository, templates)
    return {name: str(files[CONFIG]) for name, files in models.items()}


def _srun(cluster: ClusterProfile) -> list[str]:
    options = {
        "--job-name": "trtllm-hpc-templates",
        "--nodes": 1,
        "--ntasks": 1,
        "--mpi": "none",
        "--time": TASK_MINUTES,
        "--partition": cluster.partition,
        "--account": cluster.account,
        "--qos": cluster.qos,
        "--reservation": cluster.reservation,
        "--constraint": cluster.constraint,
    }
    given = [f"{name}={value}" for name, value in options.items() if value is not None]
    return ["srun", *given, *cluster.srun_options]


def _in_container(cluster: ClusterProfile, inside: Sequence[str]) -> list[str]:
    container = cluster.container
    binds = [argument for mount in container.mounts for argument in ("--bind", mount)]
    if container.runtime == "pyxis":
        arguments = [f"--container-image={container.image}", "--no-container-mount-home"]
        if container.mounts:
            arguments.append(f"--container-mounts={','.join(container.mounts)}")
        return [*arguments, *container.options, *inside]
    if container.runtime == "apptainer":
        overlay = [f"--overlay={container.overlay}:ro"] if container.overlay else []
        return ["apptainer", "exec", *overlay, *binds, *container.options, str(container.image), *inside]
    return list(inside)


def _run(
    command: Sequence[str], cluster: ClusterProfile, doctor: str | None
) -> subprocess.CompletedProcess[str]:
    conf = (cluster.slurm_conf or os.environ.get("SLURM_CONF")) if command[0] == "srun" else None
    try:
        # Inside an allocation srun would start a step of that job, with its options.
        return run_command(command, conf, timeout_s=TASK_MINUTES * 60, without=("SLURM_", "SBATCH_"))
    except SubmissionError as error:
        if error.transient:
            error.message = f"The templates had not arrived after {TASK_MINUTES} minutes."
            error.hint = "squeue --me (is the task waiting?), then the same command"
        else:
            again = doctor or f"run this where {command[0]} is installed"
            error.hint = f"{again}; or copy the templates yourself and type --from FOLDER"
        raise
