"""Measure the HTTP load generator of ``trtllm-hpc bench`` against a server whose times are known.

``python -m benchmarks.instrument [--peer aiperf=VENV] [--tls] [--page FILE]``

The server (``stub.c``) streams tokens like an engine that batches, and records the arrival of each request
and the send of each token. The server has one core, the client another. In each round, ``trtllm-hpc bench``
and its peers take turns, and their reports are compared with the server's times. Then the load rises: a
measurement with a figure that is wrong by 2 % must be invalid. Last, 10,000 streams are open at once.

The exit code is 1 if a bound is broken, 2 if the server or a client failed. The benchmark needs two cores
that no other program uses and a C compiler; ``--tls`` needs OpenSSL with its headers (libssl-dev).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from os import sched_getaffinity
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.instrument.clients import OURS, PEERS, CpuTime, Job, OurReport, our_command, run, version_of
from benchmarks.instrument.page import (
    NAN,
    Client,
    Figures,
    Step,
    Wide,
    bounds,
    medians_of,
    text,
    write_page,
)
from benchmarks.instrument.server import (
    Answer,
    InstrumentFailed,
    Load,
    Times,
    build,
    read_log,
    serving,
    turnarounds_s,
)
from trtllm_hpc.errors import TrtllmHpcError

LOADS = {
    streams: Load(streams, itl_ms, tokens)
    for streams, itl_ms, tokens in ((1, 5, 16), (32, 10, 64), (128, 20, 64), (512, 20, 64), (2000, 50, 64))
}
TLS_STREAMS = (32, 128)
RISING_STREAMS = 512
RISING_ITL_MS = (160.0, 80.0, 40.0, 30.0, 20.0, 16.0, 13.0, 11.0, 10.0, 9.0, 8.0, 7.0)
WIDE = Load(10_000, 2000, 4, processes=4)


@dataclass(frozen=True)
class Measured:
    """A client's measurement of one load."""

    job: Job
    everything: dict[int, Answer]
    cpu: CpuTime

    @property
    def answers(self) -> dict[int, Answer]:
        """The answers without the first answer of each stream, because the first requests begin together."""
        streams = self.job.load.streams
        return {number: answer for number, answer in self.everything.items() if number >= streams}

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second while all streams were open."""
        asked_s = [answer.asked_s for answer in self.answers.values()]
        begin, end = min(asked_s), max(asked_s)
        sent = np.concatenate([answer.times_s for answer in self.everything.values()])
        return float(((sent >= begin) & (sent < end)).sum() / (end - begin))


class Instrument:
    """Runs clients against the server, and compares the clients' reports with the server's times."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        cores = sorted(sched_getaffinity(0))
        if len(cores) < 2:
            raise InstrumentFailed(
                "the server and the client need a core each, and this machine has only one"
            )
        self._server_core, self._client_core, self._other_cores = {cores[0]}, {cores[-1]}, set(cores[1:])
        self._arguments, self._folder, self._numbers = arguments, folder, count()
        self._program = build(folder, tls=arguments.tls)
        write_tokenizer(folder / "tokenizer")

    def figures(self, client: Client) -> Figures:
        """Run a client with one load, and return its figures."""
        measured = self._run(LOADS[client.streams], client.name, tls=client.tls)
        stamps_ms, bound_ms, failed = (NAN, NAN), NAN, 0
        if client.name == OURS:
            report = OurReport(measured.job.folder)
            stamps_s, ttfts_s = errors_s(report, measured.answers)
            stamps_ms, ttfts_ms = _p50_p99_ms(stamps_s), _p50_p99_ms(ttfts_s)
            bound_ms, failed = report.stamp_bound_s * 1e3, report.failed
        else:
            reported_ms = _p50_p99_ms(np.array(PEERS[client.name].ttfts_ms(measured.job)) / 1e3)
            true_ms = _p50_p99_ms([answer.ttft_s for answer in measured.answers.values()])
            ttfts_ms = (abs(reported_ms[0] - true_ms[0]), abs(reported_ms[1] - true_ms[1]))
        answers, cpu = measured.everything.values(), measured.cpu
        tokens = sum(len(answer.times_s) for answer in answers)
        begun_s = cpu.until(min(answer.asked_s for answer in answers))
        loaded_s = cpu.until(max(float(answer.times_s[-1]) for answer in answers)) - begun_s
        whole_s = max(loaded_s, cpu.total_s - begun_s)
        return Figures(
            loaded_s / tokens * 1e6,
            whole_s / tokens * 1e6,
            loaded_s / len(answers) * 1e6,
            measured.tokens_per_s,
            *ttfts_ms,
            *_p50_p99_ms(turnarounds_s(measured.everything, client.streams)),
            *stamps_ms,
            bound_ms,
            failed,
        )

    def rising(self, itl_ms: float) -> Step:
        """Run our client with a heavy load, and compare its figures with the true figures."""
        measured = self._run(Load(RISING_STREAMS, itl_ms, 64), OURS)
        report = OurReport(measured.job.folder)
        answers = [measured.everything[record.input_tokens or 0] for record in report.measured]
        ttfts_s = [answer.ttft_s for answer in answers]
        itls_s = np.concatenate([np.diff(answer.times_s) for answer in answers])
        off = {
            f"{name} {at}": abs(report.metrics[key][at] / true_ms - 1)
            for name, key, true_s in (("TTFT", "ttft_from_send_ms", ttfts_s), ("ITL", "itl_ms", itls_s))
            for at, true_ms in zip(("p50", "p99"), _p50_p99_ms(true_s), strict=True)
        }
        figure = max(off, key=lambda name: off[name])
        _, late_ms = _p50_p99_ms(errors_s(report, measured.answers)[0])
        bound_ms = report.stamp_bound_s * 1e3
        return Step(measured.tokens_per_s, itl_ms, figure, off[figure], late_ms, bound_ms, report.reasons)

    def wide(self) -> Wide:
        """Run our client with 10,000 streams."""
        measured = self._run(WIDE, OURS)
        report = OurReport(measured.job.folder)
        asked = np.sort([answer.asked_s for answer in measured.everything.values()])
        ended = np.sort([answer.times_s[-1] for answer in measured.everything.values()])
        most = int(max(np.arange(1, len(asked) + 1) - np.searchsorted(ended, asked)))
        _, late_ms = _p50_p99_ms(errors_s(report, measured.answers)[0])
        bound_ms = report.stamp_bound_s * 1e3
        return Wide(WIDE.processes, most, report.failed, late_ms, bound_ms, report.reasons)

    def _run(self, load: Load, client: str, *, tls: bool = False) -> Measured:
        arguments = self._arguments
        folder = self._folder / f"{next(self._numbers)}-{client}-{load.streams}"
        folder.mkdir()
        _say(f"{load.streams} streams, a token every {load.itl_ms:g} ms{', TLS' if tls else ''}: {client}")
        log = folder / "server.log"
        cores = self._client_core if load.processes == 1 else self._other_cores
        with serving(self._program, load, log, self._server_core, tls=tls) as url:
            job = Job(url, load, load.requests(arguments.seconds), folder)
            if client == OURS:
                command = our_command(job)
            else:
                command = PEERS[client].command(arguments.peers[client] / "bin", job)
            cpu = run(command, folder, cores, ordinary=arguments.ordinary_priority)
        measured = Measured(job, read_log(log), cpu)
        if not measured.answers:
            raise InstrumentFailed(f"{client} got only {len(measured.everything)} answers; see {folder}")
        return measured


def errors_s(report: OurReport, answers: dict[int, Answer]) -> tuple[list[float], list[float]]:
    """Return the differences between the client's and the server's times: of each token, and of each TTFT."""
    stamps_s, ttfts_s = list[float](), list[float]()
    for record in report.measured:
        answer = answers.get(-1 if record.input_tokens is None else record.input_tokens)
        if answer is None:
            continue
        if len(answer.times_s) != len(record.chunks_s):
            seen = f"the client recorded {len(record.chunks_s)} of {len(answer.times_s)} tokens"
            raise InstrumentFailed(seen)
        stamps_s += (np.array(record.chunks_s) + report.zero_s - answer.times_s).tolist()
        ttfts_s.append(abs(record.chunks_s[0] - record.sent_s - answer.ttft_s))
    if not stamps_s:
        raise InstrumentFailed("no answer that the client recorded matches an answer of the server")
    return stamps_s, ttfts_s


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer with a token for each byte, for clients that generate prompts or count tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    kind = '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "!", "model_max_length": 100000}'
    (folder / "tokenizer_config.json").write_text(kind)


def _p50_p99_ms(values_s: Sequence[float] | Times) -> tuple[float, float]:
    p50, p99 = np.percentile(values_s, (50, 99))
    return float(p50) * 1e3, float(p99) * 1e3


def _say(sentence: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {sentence}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    arguments.peers = dict(arguments.peer)
    if arguments.quick:
        arguments.rounds, arguments.seconds, arguments.streams = 1, 1.0, [32]
    try:
        with tempfile.TemporaryDirectory(prefix="instrument-") as folder:
            instrument = Instrument(arguments, Path(folder))
            clients = [
                Client(streams, False, name)
                for streams in arguments.streams
                for name in (OURS, *(arguments.peers if streams in arguments.peer_streams else ()))
            ] + [Client(streams, True, OURS) for streams in (TLS_STREAMS if arguments.tls else ())]
            runs: dict[Client, list[Figures]] = {client: [] for client in clients}
            for _ in range(arguments.rounds):
                for client in clients:
                    runs[client].append(instrument.figures(client))
            steps = [
                instrument.rising(itl_ms)
                for itl_ms in (RISING_ITL_MS[2::5] if arguments.quick else RISING_ITL_MS)
            ]
            wide = None if arguments.quick else instrument.wide()
    except (InstrumentFailed, TrtllmHpcError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    medians = medians_of(runs)
    judged = bounds(medians, steps, wide)
    results = text(medians, steps, wide, judged)
    print(results)
    if arguments.page is not None:
        versions = {peer: version_of(peer, folder) for peer, folder in arguments.peers.items()}
        write_page(arguments.page, results, versions, arguments)
    return 0 if all(bound.kept for bound in judged) else 1


def _peer(value: str) -> tuple[str, Path]:
    name, _, folder = value.partition("=")
    if name not in PEERS or not (Path(folder) / "bin").is_dir():
        names = ", ".join(PEERS)
        raise argparse.ArgumentTypeError(f"must be NAME=VENV: NAME is one of {names}, VENV contains bin/")
    return name, Path(folder).absolute()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.instrument",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="repetitions of each load")
    parser.add_argument("--seconds", type=float, default=6.0, metavar="S", help="least duration of a load")
    parser.add_argument("--streams", type=int, nargs="+", choices=LOADS, default=list(LOADS), help="loads")
    parser.add_argument(
        "--peer",
        type=_peer,
        action="append",
        default=[],
        metavar="NAME=VENV",
        help=f"another client with its virtual environment: {', '.join(PEERS)}",
    )
    peers = "loads of the other clients"
    parser.add_argument(
        "--peer-streams", type=int, nargs="+", choices=LOADS, default=[1, 32, 128, 512], help=peers
    )
    parser.add_argument("--tls", action="store_true", help="also measure our client over TLS")
    parser.add_argument(
        "--ordinary-priority",
        action="store_true",
        help="run our client without real-time priority",
    )
    parser.add_argument("--quick", action="store_true", help="check in a minute that the benchmark works")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the results to this page")
    return parser


if __name__ == "__main__":
    sys.exit(main())
