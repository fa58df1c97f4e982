"""The front of a disaggregated run gets the servers' places and their key."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.waiting import eventually
from trtllm_hpc.paths import RunPaths, write_json
from trtllm_hpc.runtime.front import Front


def test_the_front_has_the_places_and_the_key_in_a_file_of_its_own(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")
    run.make_folders()
    shown = tmp_path / "shown"
    run.script("front").write_text(f'echo "$0 $*" > {shown}\nexec sleep 60\n')
    servers = {"num_instances": 1, "router": {"type": "round_robin"}}
    write_json(
        run.front, {"backend": "pytorch", "context_servers": dict(servers), "generation_servers": servers}
    )
    run.servers_key.write_text("secret\n")
    front = Front(run, {"context": ["127.0.0.1:5"], "generation": ["127.0.0.1:6"]}, [1], None)
    try:
        front.start(["llama"])
        found = yaml.safe_load(run.front_started.read_text())
        assert found["context_servers"]["urls"] == ["127.0.0.1:5"]
        assert found["generation_servers"]["urls"] == ["127.0.0.1:6"]
        assert found["internal_request_auth_key"] == "secret"
        assert run.front_started.stat().st_mode & 0o777 == 0o600
        assert eventually(shown.exists) and "secret" not in shown.read_text()
        assert "secret" not in run.front.read_text()
    finally:
        front.close()
