"""What a job file and a cluster profile mean together: release, model, programs, command lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile

if TYPE_CHECKING:
    # Data files of releases are read only for jobs that use TensorRT-LLM.
    from trtllm_hpc.tensorrt_llm.command_lines.compile import CommandLines
    from trtllm_hpc.tensorrt_llm.command_lines.encoder_decoder import Part
    from trtllm_hpc.tensorrt_llm.command_lines.toolchain import NoToolchain, Toolchain
    from trtllm_hpc.tensorrt_llm.releases import Release, UnknownRelease
    from trtllm_hpc.tensorrt_llm.releases.families import Family


TAG = "{tag}"
"""In a profile's ``container.image``: the tag of Triton's container with the job's release."""


def read_model_config(folder: str | None) -> Mapping[str, Any] | None:
    """The model's ``config.json``; ``None`` if there is no folder, or it cannot be read here.

    That is no error: a login node need not see what the compute nodes see.
    """
    if folder is None:
        return None
    try:
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


@dataclass(frozen=True)
class JobFacts:
    """A job file and a profile, with all that follows from them, for rules, plan and checks.

    A fact is worked out once, when it is first read, since a job file with faults may lack the fields that
    it needs: reading it then raises ``UnknownValueError``.
    """

    job: JobFile
    cluster: ClusterProfile
    read_config: Callable[[str | None], Mapping[str, Any] | None] = read_model_config
    """Reads the ``config.json`` in a model's folder."""

    @cached_property
    def _found_release(self) -> tuple[Release | None, UnknownRelease | None]:
        if not self.job.engine.is_tensorrt_llm:
            return None, None
        from trtllm_hpc.tensorrt_llm.releases import UnknownRelease

        try:
            return self._find_release(), None
        except UnknownRelease as error:
            return self._nearest_release(), error

    def _nearest_release(self) -> Release | None:
        """Return the release whose facts are assumed; ``None`` for engines, which fit only their own."""
        container = self.cluster.container
        if self.job.engine.has_engine or TAG in (container.image or ""):
            return None
        from trtllm_hpc.tensorrt_llm.releases import nearest_release

        return nearest_release(self.stated_version)

    def _find_release(self) -> Release:
        from trtllm_hpc.tensorrt_llm.releases import UnknownRelease, find_release

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
        from trtllm_hpc.tensorrt_llm.releases import version_of_image

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
        """The release of TensorRT-LLM; ``None`` for the reference backend, and where it is not known.

        For the LLM API on PyTorch it is then the nearest known one.
        """
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
        folder = self.job.model.path
        # str() raises where the path is a wrong value.
        return self.read_config(None if folder is None else str(folder))

    @cached_property
    def family(self) -> Family | None:
        """The family whose programs convert the model; ``None`` if unknown or not needed."""
        if not self.job.engine.is_tensorrt_llm:
            return None
        from trtllm_hpc.tensorrt_llm.releases.families import find_family

        return find_family(self.job.model.family, self.model_config)

    @property
    def examples_folder(self) -> str | None:
        """The folder of upstream's ``examples`` in the container; ``None`` where it is not known."""
        return self.cluster.container.examples or (self.release.paths.examples if self.release else None)

    @property
    def builds_engine(self) -> bool:
        """Whether the job has an engine of TensorRT-LLM to build."""
        engine = self.job.engine
        return engine.is_tensorrt_llm and engine.has_engine and engine.directory is None

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether there are two engines, an encoder's and a decoder's."""
        if self.job.engine.encoder_decoder:
            return True
        return self.builds_engine and self.family is not None and self.family.encoder_decoder

    @cached_property
    def _found_toolchain(self) -> tuple[Toolchain | None, NoToolchain | None]:
        if self.release is None or self.family is None or not self.builds_engine:
            return None, None
        from trtllm_hpc.tensorrt_llm.command_lines.toolchain import NoToolchain, find_toolchain

        try:
            return find_toolchain(self.job, self.release, self.family, self.model_config), None
        except NoToolchain as error:
            return None, error

    @property
    def toolchain(self) -> Toolchain | None:
        """The programs that build the engine; ``None`` where none is built, or none can be."""
        return self._found_toolchain[0]

    @property
    def no_toolchain(self) -> NoToolchain | None:
        """Why the release cannot build the engine."""
        return self._found_toolchain[1]

    @cached_property
    def first_able(self) -> Release | None:
        """The first release after the job's whose programs can build this engine; ``None`` if none can."""
        from trtllm_hpc.tensorrt_llm.command_lines.toolchain import NoToolchain, find_toolchain
        from trtllm_hpc.tensorrt_llm.releases import releases

        if self.release is None or self.family is None or not self.builds_engine:
            return None
        # What trtllm-build makes batches in flight without being told.
        engine = self.job.engine.model_copy(update={"inflight_batching": None})
        job = self.job.model_copy(update={"engine": engine})
        known = releases()
        for later in known[known.index(self.release) + 1 :]:
            try:
                toolchain = find_toolchain(job, later, self.family, self.model_config)
            except NoToolchain:
                continue
            if not any(lines.problems for lines in self._compiled(job, toolchain).values()):
                return later
        return None

    @cached_property
    def command_lines(self) -> Mapping[Part | None, CommandLines]:
        """The options of the toolchain's programs: for encoder and decoder, or under ``None`` for one engine.

        Empty where there is no toolchain.
        """
        return {} if self.toolchain is None else self._compiled(self.job, self.toolchain)

    def _compiled(self, job: JobFile, toolchain: Toolchain) -> Mapping[Part | None, CommandLines]:
        from trtllm_hpc.tensorrt_llm.command_lines.compile import compile_options
        from trtllm_hpc.tensorrt_llm.command_lines.encoder_decoder import PARTS

        parts = PARTS if self.is_encoder_decoder else (None,)
        return {part: compile_options(job, toolchain, self.model_config, part) for part in parts}


def with_image(cluster: ClusterProfile, version: str | None = None) -> ClusterProfile:
    """Return the profile with ``{tag}`` in its image replaced by the newest tag that carries a release.

    Args:
        version: of TensorRT-LLM; ``None`` takes the newest container known.

    Raises:
        UnknownRelease: the version is unknown, or no public container carries it.
    """
    container = cluster.container
    if container.image is None or TAG not in container.image or container.tensorrt_llm_version:
        return cluster  # a rule refuses the last two together
    from trtllm_hpc.tensorrt_llm.releases import UnknownRelease, find_release, releases

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
