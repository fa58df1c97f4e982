"""Which release of TensorRT-LLM a job file and a profile name together."""

from __future__ import annotations

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.versions import Release, find_release


def release_of(job: JobFile, cluster: ClusterProfile) -> Release | None:
    """The release that computes; ``None`` for the reference backend.

    Raises:
        UnknownRelease: neither file tells it, or they disagree.
    """
    if not job.engine.is_tensorrt_llm:
        return None
    container = cluster.container
    stated = job.engine.tensorrt_llm_version or container.tensorrt_llm_version
    # What the profile states outright is true even where the image's name says another.
    image = None if container.tensorrt_llm_version or container.runtime == "none" else container.image
    return find_release(image, stated)
