"""One contender in a process of its own; prints its figures as one line of JSON.

``python -m benchmarks.load.contend NAME SCENARIO LEVEL SECONDS PORT``
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from benchmarks.load import grpcio, ours, upstream
from benchmarks.load.figures import CLOSED, OPEN, STREAMS, Figures
from trtllm_hpc.runtime.records import Endpoint

Contend = Callable[[int, int, float], Figures]
"""Takes the gRPC port, the level (requests at once, or a second, or streams) and the seconds."""


def _at_port(measure: Callable[[Endpoint, int, float], Figures]) -> Contend:
    return lambda port, level, seconds: measure(ours.endpoint_at(port), level, seconds)


CONTENDERS: dict[tuple[str, str], Contend] = {
    ("ours", CLOSED): _at_port(ours.closed),
    ("ours", OPEN): _at_port(ours.open_),
    ("ours", STREAMS): _at_port(ours.streams),
    ("grpcio", CLOSED): grpcio.closed,
    ("grpcio", STREAMS): grpcio.streams,
    ("upstream", CLOSED): upstream.flood,
    ("upstream", OPEN): upstream.open_,
}


def main(arguments: list[str]) -> None:
    name, scenario, level, seconds, port = arguments
    figures = CONTENDERS[name, scenario](int(port), int(level), float(seconds))
    print(json.dumps(figures.as_dict()))


if __name__ == "__main__":
    main(sys.argv[1:])
