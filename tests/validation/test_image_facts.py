"""An image's own options and keys, beside what is known of its release."""

from __future__ import annotations

from typing import Any

from trtllm_hpc.tensorrt_llm.llm_api import known_keys, serve_options
from trtllm_hpc.tensorrt_llm.releases.release import release_of_version
from trtllm_hpc.validation.image_facts import compare_image

RELEASE = release_of_version("1.2.1")


def image_as_known() -> dict[str, Any]:
    assert RELEASE is not None
    options = serve_options(RELEASE).values()
    sections = {name: known_keys(RELEASE, name) or set() for name in ("", "kv_cache_config", "moe_config")}
    return {
        "packages": {"tensorrt_llm": "1.2.1"},
        "serve_options": {"serve": [{"name": it.name, "aliases": [*it.aliases]} for it in options]},
        "llm_api": {name: sorted(keys) for name, keys in sections.items()},
    }


def test_an_image_with_what_is_known_of_its_release() -> None:
    found = compare_image(RELEASE, image_as_known())
    assert found is not None and found.state == "ok" and found.code == "image-facts"


def test_every_difference_is_named() -> None:
    image = image_as_known()
    image["serve_options"]["serve"].append({"name": "--warp", "aliases": ["--w"]})
    image["llm_api"][""].remove("kv_cache_config")
    image["llm_api"]["kv_cache_config"].append("warped")
    image["llm_api"]["warp_config"] = ["speed"]
    found = compare_image(RELEASE, image)
    assert found is not None and found.state == "warn"
    for part in (
        "trtllm-serve adds --w, --warp",
        "the LLM API lacks kv_cache_config",
        "kv_cache_config adds warped",
    ):
        assert part in found.message
    assert "--bundle" in (found.hint or "")


def test_a_release_that_is_not_known_yet_is_named() -> None:
    found = compare_image(None, {**image_as_known(), "packages": {"tensorrt_llm": "2.0.0"}})
    assert found is not None and found.state == "warn" and "2.0.0 is newer" in found.message


def test_an_image_that_could_not_be_read_is_no_difference() -> None:
    assert compare_image(RELEASE, {"packages": {}}) is None
