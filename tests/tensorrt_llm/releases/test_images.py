"""Which release an image carries, however its name is written."""

from __future__ import annotations

import pytest

from trtllm_hpc.tensorrt_llm.releases.release import UnknownRelease, find_release


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("nvcr.io/nvidia/tritonserver:24.12-trtllm-python-py3", "0.16.0"),
        ("nvcr.io#nvidia/tritonserver:24.04-trtllm-python-py3", "0.9.0"),
        ("docker://nvcr.io/nvidia/tritonserver:25.02-trtllm-python-py3", "0.17.0.post1"),
        ("/images/tritonserver_24.07-trtllm-python-py3.sqsh", "0.11.0"),
        ("/my images/nvidia+tritonserver+25.11-trtllm-python-py3.sqsh", "1.0.3.2510"),
        ("tritonserver-26.05-trtllm-python-py3.sif", "1.2.1"),
        ("/sandboxes/tritonserver_24.02-trtllm-python-py3/", "0.8.0"),
    ],
)
def test_the_name_tells_the_release(image: str, version: str) -> None:
    assert find_release(image, None).version == version


@pytest.mark.parametrize("stated", ["0.16", "0.16.0", "v0.16.0"])
def test_a_version_may_be_written_in_any_way(stated: str) -> None:
    assert find_release(None, stated).version == "0.16.0"
    assert find_release("our-own.sif", stated).version == "0.16.0"
    assert find_release("tritonserver:24.12-trtllm-python-py3", stated).version == "0.16.0"


@pytest.mark.parametrize(
    "image",
    [
        None,
        "our-own.sif",
        "nvcr.io/nvidia/tritonserver:24.12-py3",
        "nvcr.io/nvidia/tritonserver:24.12-vllm-python-py3",
        "/tritonserver:24.12-trtllm-python-py3/other.sif",
        "nvcr.io/nvidia/tritonserver:24.03-trtllm-python-py3",
    ],
)
def test_what_does_not_tell_is_asked_for(image: str | None) -> None:
    with pytest.raises(UnknownRelease) as error:
        find_release(image, None)
    assert "engine.tensorrt_llm_version" in str(error.value.hint)
    assert "0.16.0" in error.value.choices
    assert image is None or image in error.value.message


@pytest.mark.parametrize("stated", ["0.99", "latest", "1.2.0rc8"])
def test_an_unknown_version_is_refused_with_those_that_are_known(stated: str) -> None:
    with pytest.raises(UnknownRelease) as error:
        find_release(None, stated)
    assert stated in error.value.message
    assert "1.2.1" in error.value.choices
