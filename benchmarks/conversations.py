"""Conversations of ``trtllm-hpc bench`` compared with NVIDIA's aiperf, on one server.

``python -m benchmarks.conversations --aiperf FILE [--url URL --model NAME] [--rounds 3]``

Both send the same conversations from the same file (aiperf's layout ``multi_turn``), as many at once, over
OpenAI's chat as streams: each turn when the one before is answered and its delay is over. In each round they
take turns at being first. Without ``--url`` the server has a known speed: ``benchmarks.load.chat_server``.

Compared are the requests a second between the first send and the last answer, and the median time from send
to first token of each turn: aiperf's ``time_to_first_token`` begins with the send, as ``ttft_from_send_ms``.
A figure agrees if the medians over the rounds differ by at most the spread of either's rounds, or by 10 %.
The exit code is 1 if one does not. aiperf needs an environment of its own: ``pip install aiperf``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from benchmarks.arguments import number
from benchmarks.load.chat_server import MODEL
from trtllm_hpc.bench.load.process import real_time_priority
from trtllm_hpc.bench.records import read_records
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.reference import synthetic
from trtllm_hpc.runtime.node import free_ports

_START_S = 120.0
_NEAR = 0.1
"""Difference of two medians that counts as none, whatever the spread."""
_WORDS = ("tea", "river", "train", "winter", "letter", "stone", "music", "bridge", "ship", "field")


@dataclass(frozen=True)
class Server:
    """Where both send to."""

    url: str
    model: str
    tokenizer: str
    """aiperf's; ours takes the server's counts."""


@dataclass(frozen=True)
class Load:
    """What both send."""

    sessions: int
    turns: int
    concurrency: int
    delay_s: float
    tokens: int

    def write(self, file: Path) -> None:
        """Write the conversations, each with other words."""
        lines = []
        for session in range(self.sessions):
            texts = [self._text(session * self.turns + turn) for turn in range(self.turns)]
            turns = [{"text": text, "role": "user", "delay": 1e3 * self.delay_s} for text in texts]
            turns[0].pop("delay")
            lines.append(json.dumps({"session_id": f"s{session}", "turns": turns}) + "\n")
        file.write_text("".join(lines))

    @staticmethod
    def _text(place: int) -> str:
        return " ".join(_WORDS[(place * 7 + step * (place % 5 + 1)) % len(_WORDS)] for step in range(20))


@dataclass(frozen=True)
class Figures:
    """What one client measured in one round."""

    rate_per_s: float
    ttft_ms: Sequence[float]
    """The median of each turn."""

    @classmethod
    def of(cls, requests: Sequence[tuple[int, float, float, float]]) -> Figures:
        """Compute them from the turn (from 0), send, first token and end of each request, in seconds."""
        by_turn: dict[int, list[float]] = {}
        for turn, sent_s, first_s, _ in requests:
            by_turn.setdefault(turn, []).append((first_s - sent_s) * 1e3)
        length_s = max(end_s for *_, end_s in requests) - min(sent_s for _, sent_s, *_ in requests)
        medians = [statistics.median(by_turn[turn]) for turn in sorted(by_turn)]
        return cls(len(requests) / length_s, medians)


def ours(server: Server, load: Load, file: Path, folder: Path) -> Figures:
    """Measure with this package."""
    options = [
        *("--url", server.url, "--output", folder, "--model", server.model),
        *("--workload", "conversations", "--file", file, "--concurrency", load.concurrency),
        *("--requests", load.sessions, "--warmup", 0, "--max-tokens", load.tokens, "--no-report"),
        *("--save-as", "round", "--max-late-share", 1),
    ]
    program = Path(sys.executable).with_name("trtllm-hpc")
    subprocess.run([program, "bench", *map(str, options)], check=True, stdout=subprocess.DEVNULL)
    records = read_records(RunPaths(folder).measurement("round").requests)
    assert all(record.ok for record in records)
    return Figures.of(
        [
            (record.turn - 1, record.sent_s, record.first_token_s, record.ended_s)
            for record in records
            if record.turn is not None and record.first_token_s is not None
        ]
    )


def aiperf(program: Path, server: Server, load: Load, file: Path, folder: Path) -> Figures:
    """Measure with aiperf."""
    options = [
        *("--url", server.url.removesuffix("/v1"), "--model", server.model, "--tokenizer", server.tokenizer),
        *("--endpoint-type", "chat", "--streaming", "--use-legacy-max-tokens"),
        *("--input-file", file, "--custom-dataset-type", "multi_turn", "--concurrency", load.concurrency),
        *("--extra-inputs", f"max_tokens:{load.tokens}", "--num-requests", load.sessions * load.turns),
        *("--use-server-token-count", "--ui", "none"),
        *("--session-header", "x-session-id", "--artifact-dir", folder),
    ]
    command = [str(program), "profile", *map(str, options)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"aiperf failed: {ended.stdout[-3000:]}{ended.stderr[-1000:]}")
    [found] = folder.rglob("profile_export.jsonl")
    requests = []
    for line in found.read_text().splitlines():
        record = json.loads(line)
        known = record["metadata"]
        sent_s = known["request_start_ns"] / 1e9
        first_s = sent_s + record["metrics"]["time_to_first_token"]["value"] / 1e3
        requests.append((known["turn_index"], sent_s, first_s, known["request_end_ns"] / 1e9))
    return Figures.of(requests)


@contextmanager
def timed_server(tokenizer: str) -> Iterator[Server]:
    """Start the server of known speed."""
    [port] = free_ports(1)
    # As the clients: else they keep the server waiting for a processor, aiperf longer than ours.
    with real_time_priority():
        process = subprocess.Popen([sys.executable, "-m", "benchmarks.load.chat_server", str(port)])
    try:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                with urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5):
                    break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        yield Server(f"http://127.0.0.1:{port}/v1", MODEL, tokenizer)
    finally:
        process.kill()
        process.wait()


def compare(name: str, mine: Sequence[float], theirs: Sequence[float]) -> bool:
    """Print a row, and return whether the medians agree."""
    first, second = statistics.median(mine), statistics.median(theirs)
    spread = max(max(mine) - min(mine), max(theirs) - min(theirs))
    agrees = abs(first - second) <= max(spread, _NEAR * second)
    ranges = [f"{statistics.median(it):8.1f} ({min(it):.1f} to {max(it):.1f})" for it in (mine, theirs)]
    print(f"{name:>20}  {ranges[0]:<28}{ranges[1]:<28}{first / second:5.2f}  {'' if agrees else 'DIFFERS'}")
    return agrees


def run(program: Path, server: Server, load: Load, rounds: int, folder: Path) -> bool:
    """Measure and compare; returns whether all figures agree."""
    file = folder / "conversations.jsonl"
    load.write(file)
    found: dict[str, list[Figures]] = {"ours": [], "aiperf": []}
    for place in range(-1, rounds):  # the first round warms the server up
        for client in ("ours", "aiperf") if place % 2 else ("aiperf", "ours"):
            output = folder / f"{client}-{place}"
            output.mkdir()
            print(f"round {place + 1}: {client}, load average {os.getloadavg()[0]:.1f}", flush=True)
            with real_time_priority():  # which ours takes anyway, if it may; children inherit it
                if client == "ours":
                    figures = ours(server, load, file, output)
                else:
                    figures = aiperf(program, server, load, file, output)
            if place >= 0:
                found[client].append(figures)
    print(f"\n{'':>20}  {'ours':<28}{'aiperf':<28}ratio")
    pairs = [("requests/s", [[one.rate_per_s for one in each] for each in found.values()])] + [
        (f"TTFT of turn {turn + 1}, ms", [[one.ttft_ms[turn] for one in each] for each in found.values()])
        for turn in range(load.turns)
    ]
    return all([compare(name, mine, theirs) for name, (mine, theirs) in pairs])


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--aiperf", type=Path, required=True, help="the program aiperf")
    parser.add_argument("--url", help="OpenAI's protocol, ending with /v1")
    parser.add_argument("--model")
    parser.add_argument("--tokenizer", help="aiperf's")
    parser.add_argument("--rounds", type=number, default=3)
    parser.add_argument("--sessions", type=number, default=24, help="a multiple of --concurrency")
    parser.add_argument("--turns", type=number, default=4)
    parser.add_argument("--concurrency", type=number, default=4)
    parser.add_argument("--delay", type=float, default=0.5)
    parser.add_argument("--tokens", type=number, default=16)
    given = parser.parse_args()
    load = Load(given.sessions, given.turns, given.concurrency, given.delay, given.tokens)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.url:
            server = Server(given.url, given.model, given.tokenizer)
            return 0 if run(given.aiperf, server, load, given.rounds, folder) else 1
        if given.tokenizer is None:
            synthetic.make_tokenizer(folder / "tokenizer")
        with timed_server(given.tokenizer or str(folder / "tokenizer")) as server:
            return 0 if run(given.aiperf, server, load, given.rounds, folder) else 1


if __name__ == "__main__":
    sys.exit(main())
