from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.echo_server import echo_server
from trtllm_hpc.runtime.records import Endpoint


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A real tritonserver with text models and core models."""
    with echo_server(tmp_path_factory.mktemp("server"), core_models=True) as ready:
        yield ready
