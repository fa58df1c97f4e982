from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.engine_cache.builds import Run, make_model, make_run, recipe


@pytest.fixture
def runs(tmp_path: Path, zipapp: bytes) -> Iterator[Callable[..., Run]]:
    """Makes runs that share a cache and a model; nothing of them is left at the end."""
    made: list[Run] = []

    def make(**options: Any) -> Run:
        model = make_model(tmp_path / "models" / "a model's")
        changes = {name: options.pop(name) for name in list(options) if name not in ("script", "log")}
        folder = tmp_path / "runs" / f"run {len(made)}"
        made.append(make_run(folder, recipe(tmp_path / "engines", model, **changes), zipapp, **options))
        return made[-1]

    yield make
    for run in made:
        run.clean()
