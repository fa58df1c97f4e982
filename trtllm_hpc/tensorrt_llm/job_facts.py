"""What a job file and a cluster profile mean together: the release, the model, and the model's checkpoint."""

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
    # Data files of releases are read only for jobs that use TensorRT-LLM.
    from trtllm_hpc.tensorrt_llm.releases.release import Release, UnknownRelease

ReleaseUse = Literal["none", "exact", "nearest"]
"""What a backend needs of a release: nothing, the facts of exactly this release, or those of the nearest
known one where the image is newer than all."""

TAG = "{tag}"
"""In a profile's ``container.image``: the tag of Triton's container with the job's release."""


def read_model_config(folder: str | None) -> Mapping[str, Any] | None:
    """The model's ``config.json``; ``None`` if there is no folder, or it cannot be read here.

    That is no error: a login node need not see what the compute nodes see.
    """
    return None if folder is None else _mapping(Path(folder) / "config.json")


def _mapping(file: Path) -> Mapping[str, Any] | None:
    with suppress(OSError, ValueError):
        value = json.loads(file.read_text(encoding="utf-8"))
        return value if isinstance(value, dict) else None
    return None


@dataclass(frozen=True)
class JobFacts:
    """A job file and a profile, with all that follows from them, for rules, plan and checks.

    A fact is worked out once, when it is first read.
    """

    job: JobFile
    cluster: ClusterProfile
    release_use: ReleaseUse = "none"

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
        # What the profile states outright is true even where the image's name says otherwise.
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
        """The version that the files or the image's name state, known here or not."""
        from trtllm_hpc.tensorrt_llm.releases.release import version_of_image

        container = self.cluster.container
        stated = self.job.engine.tensorrt_llm_version or container.tensorrt_llm_version
        return stated or version_of_image(container.image or "")

    def image_is_at_least(self, version: str) -> bool | None:
        """Whether the image has this version or a later one; ``None`` where nothing says which it has."""
        from trtllm_hpc.tensorrt_llm.releases.data_files import parsed

        is_known = self.release is not None and self.assumed_release is None
        found = self.release.version if is_known and self.release else self.stated_version
        with suppress(ValueError):  # not a version
            return parsed(found) >= parsed(version) if found else None
        return None

    @property
    def release(self) -> Release | None:
        """The release of TensorRT-LLM, as :data:`ReleaseUse` says; ``None``: not needed, or not known."""
        return self._found_release[0]

    @property
    def unknown_release(self) -> UnknownRelease | None:
        """Why the release is not known, if that matters."""
        return self._found_release[1] if self.release is None else None

    @property
    def assumed_release(self) -> UnknownRelease | None:
        """Why the facts of ``release`` are assumed only."""
        return self._found_release[1] if self.release is not None else None

    @cached_property
    def model_config(self) -> Mapping[str, Any] | None:
        """The model's ``config.json``; ``None`` if it cannot be read here."""
        return read_model_config(self.job.model.path)


def with_job_image(cluster: ClusterProfile, image: str | None) -> ClusterProfile:
    """Return the profile with the image that a job file names, whose release the profile cannot state."""
    if image is None or cluster.container.runtime == "none":
        return cluster
    update = {"image": image, "tensorrt_llm_version": None}
    return cluster.model_copy(update={"container": cluster.container.model_copy(update=update)})


def with_image(cluster: ClusterProfile, version: str | None = None) -> ClusterProfile:
    """Return the profile with ``{tag}`` in its image replaced by the newest tag that carries a release.

    ``version`` is that of TensorRT-LLM; ``None`` takes the newest container known. Raises UnknownRelease if
    the version is unknown, or no public container carries it.
    """
    container = cluster.container
    if container.image is None or TAG not in container.image or container.tensorrt_llm_version:
        return cluster  # a rule refuses the last two together
    from trtllm_hpc.tensorrt_llm.releases.release import UnknownRelease, find_release, releases

    with_containers = [release for release in releases() if release.tags]
    release = with_containers[-1] if version is None else find_release(None, version)
    if not release.tags:
        raise UnknownRelease(
            f"no public container of Triton carries TensorRT-LLM {release.version}, so {TAG} in the image "
            f"{container.image} has no value",
            hint="name an image that carries it: --set cluster.container.image=IMAGE",
            choices=[other.version for other in with_containers],
        )
    image = container.image.replace(TAG, release.tags[-1])
    # Stated as well: an image of another name than NVIDIA's does not tell its release.
    update = {"image": image, "tensorrt_llm_version": release.version}
    return cluster.model_copy(update={"container": container.model_copy(update=update)})


_PACKED = {"float-quantized": "fp8", "pack-quantized": "int4"}
_PACKED |= {f"{kind}-pack-quantized": kind for kind in ("mxfp4", "nvfp4")}
"""Formats of compressed-tensors, by the names that the other tools have for them."""


class Checkpoint:
    """A checkpoint of Hugging Face's layout. Raises ConfigError if its files name no architecture."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.resolve().name
        names = ("config.json", "hf_quant_config.json", "model.safetensors.index.json")
        whole, quantized, index = (_mapping(folder / name) or {} for name in names)
        self.config: Mapping[str, Any] = {**whole, **(whole.get("text_config") or {})}
        """``config.json``; of a multimodal model, the part about text."""
        if not whole.get("architectures"):
            wrong, hint = "has no config.json that names an architecture", "name the checkpoint's folder here"
            raise ConfigError([Diagnostic("not-a-checkpoint", wrong, str(folder), hint=hint)])
        self.architecture = str(whole["architectures"][0])
        found = quantized.get("quantization") or self.config.get("quantization_config") or {}
        method = str(found.get("quant_algo") or found.get("quant_method") or "none").lower()
        is_packed = method == "compressed-tensors"
        self.quantization = _PACKED.get(str(found.get("format")), method) if is_packed else method
        """``none``, ``fp8``, ``nvfp4``, ``mxfp4``, ``int4``, or another name that the checkpoint gives."""
        self.has_fp8_cache = str(found.get("kv_cache_quant_algo")).lower() == "fp8"
        counts = (self.config.get(it) for it in ("num_experts", "num_local_experts", "n_routed_experts"))
        self.experts = next(filter(None, counts), 0)  # of one layer; 0: a dense model
        files = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        self.stored: int | None = int((index.get("metadata") or {}).get("total_size") or files) or None
        """Bytes of all weights; ``None``: neither their index nor their files are there."""
