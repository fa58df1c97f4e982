"""Wrong words for upstream's programs, with their places; right ones are in ``outcomes.py``."""

from __future__ import annotations

import pytest

from tests.config.conftest import files as files
from tests.config.files import CLUSTER, JOB, Folder

ENGINE = (
    JOB
    + "model: {path: /models/llama, family: llama}\nengine:\n  backend: tensorrtllm\n"
    + "  tensorrt_llm_version: 0.9.0\n  options:\n"
)


@pytest.mark.parametrize(
    ("words", "place", "message", "hint"),
    [
        ("[--fast_build]", "build[0]", "no option '--fast_build'", "versions show 0.9.0"),
        ("[--paged_stat, enable]", "build[0]", "no option '--paged_stat'", "did you mean --paged_state"),
        ("[--max_batch_size=4]", "build[0]", "by the toolkit itself", "set engine.max_batch_size"),
        ("[--output_dir, /x]", "build[0]", "by the toolkit itself", "remove it"),
        ("[--gpus_per_node, '4']", "build[0]", "by the toolkit itself", "serve.nodes"),
    ],
)
def test_what_the_release_would_refuse(
    files: Folder, words: str, place: str, message: str, hint: str
) -> None:
    diagnostics = files.diagnostics(f"{ENGINE}    build: {words}\n", CLUSTER)
    [diagnostic] = [each for each in diagnostics if each.field == f"engine.options.{place}"]
    assert files.place(diagnostic).startswith("job:7 ") and diagnostic.code == "release"
    assert message in diagnostic.message and hint in (diagnostic.hint or "")


def test_words_for_a_program_that_does_not_run(files: Folder) -> None:
    diagnostic = files.diagnostic(f"{ENGINE}    quantize: [--seed, '1']\n", CLUSTER)
    assert diagnostic.field == "engine.options.quantize"
    assert "convert_checkpoint.py, then trtllm-build" in diagnostic.message
