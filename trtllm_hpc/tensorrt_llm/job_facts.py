"""Facts that follow from a job file and a profile together: the release, the model and its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import ConfigError, Diagnostic

if TYPE_CHECKING:
    # Not imported at run time: the data files of releases are read only for jobs that use TensorRT-LLM.
    from trtllm_hpc.tensorrt_llm.releases.release import Release, UnknownRelease

ReleaseUse = Literal["none", "exact", "nearest"]
"""The facts about a release that a backend needs: none, the facts of exactly this release, or, for an image
that is newer than all known releases, the facts of the nearest one."""

TAG = "{tag}"
"""Placeholder in a profile's ``container.image`` for the tag of Triton's container with the job's release."""


def read_model_config(folder: str | None) -> Mapping[str, Any] | None:
    """Return the model's ``config.json``; ``None`` if there is no folder, or the file is not readable here.

    An unreadable file is not an error: a login node may not see the file systems of the compute nodes.
    """
    return None if folder is None else _mapping(Path(folder) / "config.json")


def _mapping(file: Path) -> Mapping[str, Any] | None:
    with suppress(OSError, ValueError):
        value = json.loads(file.read_text(encoding="utf-8"))
        return value if isinstance(value, dict) else None
    return None


@dataclass(frozen=True)
class JobFacts:
    """A job file and a profile, with the facts that follow from them, for rules, plan and checks.

    Each fact is computed once, when it is first read.
    """

    job: JobFile
    cluster: ClusterProfile
    release_use: ReleaseUse = "none"
    """The facts about the release that the backend needs."""

    @cached_property
    def _found_release(self) -> tuple[Release | None, UnknownRelease | None]:
        if self.release_use == "none":
            return None, None
        from trtllm_hpc.tensorrt_llm.releases.release import UnknownRelease, nearest_release

        try:
            return self._find_release(), None
        except UnknownRelease as error:
            only_exact = self.release_use == "exact" or TAG in (self.cluster.container.image or "")
            return None if only_exact else nearest_release(self.stated_version), error

    def _find_release(self) -> Release:
        from trtllm_hpc.tensorrt_llm.releases.release import UnknownRelease, find_release

        in_job = self.job.engine.tensorrt_llm_version
        container = with_image(self.cluster, in_job).container
        in_profile = container.tensorrt_llm_version
        # A version stated in the profile overrides the image's name.
        image = None if in_profile or container.runtime == "none" else container.image
        release = find_release(image, in_job or in_profile)
        if in_job and in_profile and find_release(None, in_profile) is not release:
            raise UnknownRelease(
                f"the profile states TensorRT-LLM {in_profile}, but engine.tensorrt_llm_version is {in_job}",
                hint="leave engine.tensorrt_llm_version out, or take a profile with an image of that release",
            )
        return release

    @property
    def stated_version(self) -> str | None:
        """The version stated by the files or by the image's name, whether it is a known release or not."""
        from trtllm_hpc.tensorrt_llm.releases.release import version_of_image

        container = self.cluster.container
        stated = self.job.engine.tensorrt_llm_version or container.tensorrt_llm_version
        return stated or version_of_image(container.image or "")

    def image_is_at_least(self, version: str) -> bool | None:
        """Return whether the image has this version or a later one; ``None``: its version is unknown."""
        from trtllm_hpc.tensorrt_llm.releases.data_files import parsed

        is_known = self.release is not None and self.assumed_release is None
        in_image = self.release.version if is_known and self.release else self.stated_version
        with suppress(ValueError):  # the text is not a version
            return parsed(in_image) >= parsed(version) if in_image else None
        return None

    @property
    def release(self) -> Release | None:
        """The release, or the nearest known release (:data:`ReleaseUse`); ``None``: not needed or unknown."""
        return self._found_release[0]

    @property
    def unknown_release(self) -> UnknownRelease | None:
        """Why the release is unknown, if the backend needs it."""
        return self._found_release[1] if self.release is None else None

    @property
    def assumed_release(self) -> UnknownRelease | None:
        """Why ``release`` is only the nearest release, so that its facts are assumptions."""
        return self._found_release[1] if self.release is not None else None

    @cached_property
    def model_config(self) -> Mapping[str, Any] | None:
        """The model's ``config.json``; ``None`` if it is not readable here."""
        return read_model_config(self.job.model.path)


def with_job_image(cluster: ClusterProfile, image: str | None) -> ClusterProfile:
    """Return the profile with the job file's image; the profile's release does not apply to that image."""
    if image is None or cluster.container.runtime == "none":
        return cluster
    update = {"image": image, "tensorrt_llm_version": None}
    return cluster.model_copy(update={"container": cluster.container.model_copy(update=update)})


def with_image(cluster: ClusterProfile, version: str | None = None) -> ClusterProfile:
    """Return the profile with ``{tag}`` in its image replaced by the newest tag that has a release.

    ``version`` is the version of TensorRT-LLM; ``None``: the newest known container. Raises UnknownRelease if
    the version is unknown, or no public container has it.
    """
    container = cluster.container
    if container.image is None or TAG not in container.image or container.tensorrt_llm_version:
        return cluster  # a rule refuses {tag} together with a stated version
    from trtllm_hpc.tensorrt_llm.releases.release import UnknownRelease, find_release, releases

    with_containers = [release for release in releases() if release.tags]
    release = with_containers[-1] if version is None else find_release(None, version)
    if not release.tags:
        raise UnknownRelease(
            f"no public container of Triton has TensorRT-LLM {release.version}, so {TAG} in the image "
            f"{container.image} has no value",
            hint="name an image that has it: --set cluster.container.image=IMAGE",
            choices=[other.version for other in with_containers],
        )
    image = container.image.replace(TAG, release.tags[-1])
    # Also state the version, because it cannot be read from the name of an image that is not NVIDIA's.
    update = {"image": image, "tensorrt_llm_version": release.version}
    return cluster.model_copy(update={"container": container.model_copy(update=update)})


_PACKED = {"float-quantized": "fp8", "pack-quantized": "int4"}
_PACKED |= {f"{kind}-pack-quantized": kind for kind in ("mxfp4", "nvfp4")}
"""Formats of compressed-tensors, and the names that other tools use for them."""


class Checkpoint:
    """A checkpoint in Hugging Face's layout. Raises ConfigError if its files name no architecture."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.resolve().name
        names = ("config.json", "hf_quant_config.json", "model.safetensors.index.json")
        whole, quantized, index = (_mapping(folder / name) or {} for name in names)
        self.config: Mapping[str, Any] = {**whole, **(whole.get("text_config") or {})}
        """``config.json``; for a multimodal model, with the keys of the part about text."""
        if not whole.get("architectures"):
            wrong, hint = "has no config.json that names an architecture", "name the checkpoint's folder here"
            raise ConfigError([Diagnostic("not-a-checkpoint", wrong, str(folder), hint=hint)])
        self.architecture = str(whole["architectures"][0])
        scheme = quantized.get("quantization") or self.config.get("quantization_config") or {}
        method = str(scheme.get("quant_algo") or scheme.get("quant_method") or "none").lower()
        is_packed = method == "compressed-tensors"
        self.quantization = _PACKED.get(str(scheme.get("format")), method) if is_packed else method
        """``none``, ``fp8``, ``nvfp4``, ``mxfp4``, ``int4``, or another name from the checkpoint."""
        self.has_fp8_cache = str(scheme.get("kv_cache_quant_algo")).lower() == "fp8"
        counts = (self.config.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts"))
        self.experts = next(filter(None, counts), 0)
        """Number of experts in a layer; 0: a dense model."""
        files = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        self.stored: int | None = int((index.get("metadata") or {}).get("total_size") or files) or None
        """Size of all weights in bytes; ``None``: neither the weights nor their index are there."""
