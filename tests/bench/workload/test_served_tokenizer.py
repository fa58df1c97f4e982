"""The server's tokenizer, on a real tritonserver whose tokens are bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trtllm_hpc.bench.workload.tokenizers import ServedTokenizer, find_tokenizer
from trtllm_hpc.config.benchmark import Workload
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.synthetic import make_tokenizer
from trtllm_hpc.runtime.records import Endpoint

from .helpers import build, prompts_of

pytestmark = pytest.mark.triton


def test_the_server_encodes_texts(endpoint: Endpoint) -> None:
    served = ServedTokenizer(endpoint, 10)
    assert served.encode(["ab", "", "ç"]) == [[97, 98], [], [195, 167]]
    assert served.counted_by == "preprocessing"


def test_texts_of_a_given_length_with_the_servers_tokenizer(endpoint: Endpoint) -> None:
    built = build(3, tokenizer=ServedTokenizer(endpoint, 10), kind="normal", input_tokens=20)
    assert [len(prompt) for prompt in prompts_of(built)] == [20, 20, 20]
    assert built.requests[0].input_by == "preprocessing"


def test_the_server_counts_if_no_folder_has_a_tokenizer(endpoint: Endpoint) -> None:
    found = find_tokenizer(Workload(), [], endpoint)
    assert found.tokenizer is not None and found.tokenizer.counted_by == "preprocessing"


def test_the_server_counts_if_the_local_tokenizer_differs(endpoint: Endpoint, tmp_path: Path) -> None:
    make_tokenizer(tmp_path / "model")
    found = find_tokenizer(Workload(), [tmp_path / "model"], endpoint)
    assert found.tokenizer is not None and found.tokenizer.counted_by == "preprocessing"
    assert found.note is not None and "differs from the server's" in found.note


def test_without_a_server_there_is_no_served_tokenizer(endpoint: Endpoint) -> None:
    unreachable = replace(endpoint, http_port=1)
    assert find_tokenizer(Workload(), [], unreachable).tokenizer is None
    with pytest.raises(RequestFailed, match="cannot be reached"):
        ServedTokenizer(unreachable, 1)
