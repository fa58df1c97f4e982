"""Which release of TensorRT-LLM, and which image, a job file and a profile name together."""

from __future__ import annotations

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.tensorrt_llm.releases import Release, UnknownRelease, find_release, releases

TAG = "{tag}"
"""In a profile's ``container.image``: the tag of Triton's container with the job's release."""


def release_of(job: JobFile, cluster: ClusterProfile) -> Release | None:
    """The release that computes; ``None`` for the reference backend.

    Raises:
        UnknownRelease: neither file tells it, or they disagree.
    """
    if not job.engine.is_tensorrt_llm:
        return None
    container = with_image(cluster, job.engine.tensorrt_llm_version).container
    wanted, there = job.engine.tensorrt_llm_version, container.tensorrt_llm_version
    # What the profile states outright is true even where the image's name says another.
    image = None if there or container.runtime == "none" else container.image
    release = find_release(image, wanted or there)
    if wanted and there and find_release(None, there) is not release:
        raise UnknownRelease(
            f"the profile states TensorRT-LLM {there}, but engine.tensorrt_llm_version is {wanted}",
            hint="leave engine.tensorrt_llm_version out, or take a profile with an image of that release",
        )
    return release


def with_image(cluster: ClusterProfile, version: str | None = None) -> ClusterProfile:
    """The profile with ``{tag}`` in its image replaced by the newest tag that carries a release.

    Args:
        version: of TensorRT-LLM; ``None`` takes the newest container known.

    Raises:
        UnknownRelease: the version is unknown, or no public container carries it.
    """
    container = cluster.container
    if container.image is None or TAG not in container.image or container.tensorrt_llm_version:
        return cluster  # a rule refuses the last two together
    carried = [release for release in releases() if release.tags]
    release = carried[-1] if version is None else find_release(None, version)
    if not release.tags:
        raise UnknownRelease(
            f"no public container of Triton carries TensorRT-LLM {release.version}, so {TAG} in the image "
            f"{container.image} stands for nothing",
            hint="name an image that carries it: --set cluster.container.image=IMAGE",
            choices=[other.version for other in carried],
        )
    image = container.image.replace(TAG, release.tags[-1])
    # Stated as well: an image of another name than NVIDIA's does not tell its release.
    update = {"image": image, "tensorrt_llm_version": release.version}
    return cluster.model_copy(update={"container": container.model_copy(update=update)})
