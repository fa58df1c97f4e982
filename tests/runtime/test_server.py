"""What a rank's server finds around it."""

from __future__ import annotations

import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.runtime.conftest import Runtime
from tests.upstream.llm_api import LAUNCHER
from tests.waiting import eventually
from trtllm_hpc.runtime.launched_server import LaunchedServer
from trtllm_hpc.runtime.servers.triton import find_server


def test_only_pythons_own_library_goes_before_those_of_wheels(tmp_path: Path) -> None:
    """The folder in which Python's library lies may hold the system's cuDNN, NCCL and others, too."""
    _, variables = find_server("pytriton", tmp_path / "scratch")
    first, *rest = variables["LD_LIBRARY_PATH"].split(os.pathsep)
    names = [file.name for file in Path(first).iterdir()]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert [name for name in names if not name.startswith(f"libpython{version}")] == []
    assert rest == os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)[: len(rest)]


def _port_of(file: Path) -> int:
    return int(file.read_text().rpartition(":")[2])


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _end(server: LaunchedServer, place: Path) -> None:
    server.terminate()
    with suppress(OSError), socket.create_connection(("127.0.0.1", _port_of(place / "address"))) as leader:
        leader.sendall(b"stop")
    eventually(lambda: server.poll() is not None)
    server.kill()


def _start(place: Path, runtime: Runtime, *before: str) -> LaunchedServer:
    place.mkdir()
    over = str(place / "over")
    environment = {"FAKE_LAUNCH_OVER": over, "FAKE_IMPORT_SECONDS": "1", "SLURM_PROCID": "0"}
    task = 'echo "$TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR" > "$0"; exec sleep 60'
    return LaunchedServer(
        [*before, str(LAUNCHER)],
        ["bash", "-c", task, str(place / "address")],
        {**os.environ, **environment},
        place,
        runtime.paths.runtime,
        chooses_port=True,
        later=bool(before),
    )


@pytest.mark.alone
def test_a_port_that_is_chosen_after_other_commands_is_held(
    tmp_path: Path, runtime: Runtime, request: pytest.FixtureRequest
) -> None:
    """Alone, since it does not wait for other launchers of this machine."""
    places = [tmp_path / "later", tmp_path / "next"]
    later = _start(places[0], runtime, "bash", "-c", 'sleep 0.5; exec "$@"', "--")
    request.addfinalizer(partial(_end, later, places[0]))
    assert eventually(lambda: later.poll() is None and (places[0] / "address").exists())
    request.addfinalizer(partial(_end, _start(places[1], runtime), places[1]))
    assert eventually(lambda: later.poll() is None and (places[1] / "address").exists())
    ports = [_port_of(place / "address") for place in places]
    assert len(set(ports)) == 2 and eventually(lambda: all(map(_answers, ports)))


def test_launchers_that_start_at_once_on_a_node_take_different_ports(
    tmp_path: Path, runtime: Runtime, request: pytest.FixtureRequest
) -> None:
    """Each lets the port go that it has found, and binds it a second later."""
    places = [tmp_path / f"{number}" for number in range(3)]
    start = partial(_start, runtime=runtime)
    with ThreadPoolExecutor() as threads:
        servers = list(threads.map(start, places))
    addresses = [place / "address" for place in places]
    assert eventually(lambda: all(file.exists() and file.read_text() for file in addresses))
    for server, place in zip(servers, places, strict=True):
        request.addfinalizer(partial(_end, server, place))
    ports = [_port_of(place / "address") for place in places]
    assert len(set(ports)) == len(places) and min(ports) >= 10012
    assert eventually(lambda: all(map(_answers, ports))), [server.poll() for server in servers]
