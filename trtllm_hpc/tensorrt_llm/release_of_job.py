"""Which release of TensorRT-LLM a job file and a profile name together."""

from __future__ import annotations

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.tensorrt_llm.releases import Release, UnknownRelease, find_release


def release_of(job: JobFile, cluster: ClusterProfile) -> Release | None:
    """The release that computes; ``None`` for the reference backend.

    Raises:
        UnknownRelease: neither file tells it, or they disagree.
    """
    if not job.engine.is_tensorrt_llm:
        return None
    container = cluster.container
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
