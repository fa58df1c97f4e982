"""The lock of a plan: its settings without secrets, and what this machine knows of what it is made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtllm_hpc import __version__
from trtllm_hpc.config.cluster import SECRETS
from trtllm_hpc.config.hub import record_of
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.runtime.lock import Lock, fingerprint, image_facts

_ENVIRONMENTS = ("environment", "env_overrides")
"""Keys whose mappings are environment variables."""


def lock_of(plan: Plan) -> Lock:
    """Return the lock of a plan, before its run."""
    job, cluster = plan.job.model_dump(), plan.cluster.model_dump()
    del cluster["job_defaults"]  # they are in the job
    left_out = [*_without_secrets(job, ""), *_without_secrets(cluster, "cluster.")]
    container, folder = plan.cluster.container, plan.job.model.path
    hub_model = record_of(folder)
    is_partial = folder is not None and hub_model is not None and bool(hub_model.missing(Path(folder)))
    return Lock(
        version=__version__,
        job=job,
        cluster=cluster,
        left_out=left_out,
        release=plan.release,
        image=None if container.runtime == "none" or not container.image else image_facts(container.image),
        checkpoint=None if is_partial else fingerprint(folder),
    )


def _is_secret(name: str) -> bool:
    return SECRETS.fullmatch(name) is not None or name.upper().endswith("_KEY")


def _without_secrets(section: dict[str, Any], prefix: str, *, are_variables: bool = False) -> Iterator[str]:
    """Take variables with the names of secrets, and lists that set such variables, out; yield their keys."""
    for key, value in [*section.items()]:
        words = value if isinstance(value, list) else ()
        assigned = [name for word in words for name in re.findall(r"(\w+)=", str(word))]
        if any(map(_is_secret, assigned)) or (are_variables and _is_secret(key)):
            section[key] = type(value)()  # keeps the place of the key
            yield f"{prefix}{key}"
        elif isinstance(value, dict):
            yield from _without_secrets(value, f"{prefix}{key}.", are_variables=key in _ENVIRONMENTS)
