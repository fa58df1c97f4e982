"""Upstream's parsers are run on command lines and files, and what they take is read from them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trtllm_hpc.runtime.node_checks import image as upstream
from trtllm_hpc.runtime.node_checks.image import RefusedByUpstream

TINY = Path(__file__).parents[1] / "upstream" / "tiny"
NGRAM = {"decoding_type": "NGram", "max_draft_len": 3, "max_matching_ngram_size": 2}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(TINY)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


def write(folder: Path, configuration: object) -> str:
    file = folder / "file.yaml"
    file.write_text(json.dumps(configuration))
    return str(file)


def test_a_command_line_and_its_file_become_checked_arguments(tmp_path: Path) -> None:
    file = write(tmp_path, {"stream_interval": 4, "speculative_config": NGRAM})
    words = ["/models/a b", "--tp_size=2", f"--extra_llm_api_options={file}"]
    arguments = upstream.server_arguments(words)
    assert (str(arguments.model), arguments.tensor_parallel_size, arguments.stream_interval) == (
        "/models/a b",
        2,
        4,
    )
    assert arguments.speculative_config.max_matching_ngram_size == 2
    # Upstream's module is as it was.
    assert upstream.server_arguments(words) == arguments


@pytest.mark.parametrize(
    ("words", "file", "said"),
    [
        (["--bogus=1"], {}, r"NoSuchOption: .*--bogus"),
        (["--tp_size=two"], {}, "BadParameter"),
        (["--backend=tpu"], {}, "'tpu' is not one of"),
        ([], {"bogus": 1}, "ValueError: LLM got invalid argument: bogus"),
        ([], {"kv_cache_config": {"bogus": 1}}, "kv_cache_config.bogus"),
        ([], {"stream_interval": 0}, "stream_interval must be positive"),
        ([], {"speculative_config": None}, "TypeError"),
        ([], {"speculative_config": {"decoding_type": "Nothing"}}, "KeyError: 'Nothing'"),
    ],
)
def test_what_upstream_refuses_is_refused_in_its_words(
    tmp_path: Path, words: list[str], file: object, said: str
) -> None:
    with pytest.raises(RefusedByUpstream, match=said):
        upstream.server_arguments(["/models/a", *words, f"--config={write(tmp_path, file)}"])


def test_a_command_line_that_starts_no_server_is_refused() -> None:
    with pytest.raises(RefusedByUpstream, match="starts no server"):
        upstream.server_arguments(["--help"])


def test_tritons_model_takes_sections_as_the_server_does() -> None:
    given = {"model": "/models/a", "speculative_config": dict(NGRAM)}
    assert upstream.llm_arguments(given).speculative_config.max_draft_len == 3
    assert upstream.llm_arguments(given).backend == "pytorch", "what it is given stays as it is"
    with pytest.raises(RefusedByUpstream, match="invalid argument: triton_config"):
        upstream.llm_arguments({**given, "triton_config": {}})


def front(router: str, urls: int = 1) -> dict[str, object]:
    phase = {"num_instances": 1, "router": {"type": router}}
    return {
        "hostname": "127.0.0.1",
        "port": 0,
        **{f"{role}_servers": {**phase, "urls": ["a:1"] * urls} for role in ("context", "generation")},
    }


def test_the_command_line_of_the_front_is_read_by_upstream(tmp_path: Path) -> None:
    words = [
        "disaggregated",
        "--request_timeout=9",
        f"--config_file={write(tmp_path, front('load_balancing'))}",
    ]
    assert upstream.front_arguments(words).gen_router_config.type == "load_balancing"
    with pytest.raises(RefusedByUpstream, match=r"NoSuchOption: .*--requests"):
        upstream.front_arguments([*words, "--requests=9"])
    write(tmp_path, front("round_robin", urls=2))
    with pytest.raises(RefusedByUpstream, match="number of urls"):
        upstream.front_arguments(words)
    write(tmp_path, front("by_hand"))
    with pytest.raises(RefusedByUpstream, match="Unsupported router type: by_hand"):
        upstream.front_arguments(words)


def test_without_upstream_there_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part != str(TINY)])
    with pytest.raises(ImportError):
        upstream.server_arguments(["/models/a"])
    with pytest.raises(ImportError):
        upstream.front_arguments(["disaggregated"])
