"""``trtllm-hpc migrate``."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.cli.typed import home as home
from tests.schemas.check import documented
from trtllm_hpc.cli import command
from trtllm_hpc.config.files import jobs
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.validation.load import load


def migrate(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["migrate", *arguments], catch_exceptions=False)


def test_the_new_job_file_goes_to_standard_output_and_the_list_beside_it() -> None:
    done = migrate("readme-gpt2-logits")
    assert done.exit_code == 0 and done.stdout.startswith("# GPT-2 whose answers")
    assert "backend: pytorch" in done.stdout and "Without a counterpart" not in done.stdout
    assert "Without a counterpart: decide what to do:\n  engine.gather_context_logits: " in done.stderr
    assert "    instead: " in done.stderr and "  engine.plugins: " in done.stderr


def test_a_file_is_written_that_loads_and_an_old_one_is_not_lost(home: Path) -> None:
    done = migrate("readme-mixtral-8x22b-ep", "--output", "new.yaml")
    assert "Wrote new.yaml.\n  next: trtllm-hpc render new.yaml --cluster pyxis\n" in done.output
    assert load(Path("new.yaml"), "pyxis").job.engine.moe_expert_parallel == 4
    with pytest.raises(ConfigError, match="already exists"):
        migrate("readme-gpt2-tp4", "--output", "new.yaml")
    assert "Mixtral" in Path("new.yaml").read_text()
    migrate("readme-gpt2-tp4", "--output", "new.yaml", "--force")
    assert "GPT-2" in Path("new.yaml").read_text()


def test_the_same_as_json() -> None:
    record = documented("migrate", migrate("readme-gpt2-logits", "--json").output)
    assert record["output"] is None and record["text"].startswith("# GPT-2")
    kinds = {change["key"]: change["kind"] for change in record["changes"]}
    assert kinds["engine.backend"] == "changed" and kinds["engine.gather_context_logits"] == "lost"


def test_a_wrong_job_and_one_without_an_engine_are_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("name: a\nengine: {backend: tensorrtllm, tensor_paralel: 2}\n")
    with pytest.raises(ConfigError) as refused:
        migrate(str(wrong))
    assert refused.value.diagnostics[0].field == "engine.tensor_paralel"
    with pytest.raises(ConfigError, match="nothing to migrate"):
        migrate("tiny-llama")
    assert "nothing" not in jobs()["tiny-llama"].read_text()
