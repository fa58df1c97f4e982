"""Prompts of drawn lengths, which say nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle

import numpy as np

from trtllm_hpc.bench.workload.draws import Stream, draws
from trtllm_hpc.bench.workload.histogram import histogram_lengths, histogram_longer
from trtllm_hpc.bench.workload.lengths import Lengths, normal_lengths, normal_longer, refuse_cut, within
from trtllm_hpc.bench.workload.material import material
from trtllm_hpc.bench.workload.shape import Shape, draw_codes
from trtllm_hpc.bench.workload.wanted import Built, Wanted


def normal(wanted: Wanted) -> Built:
    """Lengths from normal distributions, upstream's ``token-norm-dist``."""
    refuse_cut(wanted, "input_tokens", partial(normal_longer, wanted))
    return _of_lengths(wanted, normal_lengths(wanted))


def histogram(wanted: Wanted) -> Built:
    """Lengths from a file of bins, upstream's ``token-from-histogram``."""
    refuse_cut(wanted, "path", partial(histogram_longer, wanted))
    return _of_lengths(wanted, histogram_lengths(wanted))


def shared_prefix(wanted: Wanted) -> Built:
    """Prompts that begin with one of a few prefixes, which take turns; the rest is drawn as by ``normal``."""
    tokens = wanted.workload.prefix_tokens
    refuse_cut(wanted, "input_tokens", partial(normal_longer, wanted), tokens)
    lengths, notes = within(normal_lengths(wanted), wanted.limit, tokens)
    made = material(wanted)
    requests = list(made.requests(_prefixed(wanted, lengths)))
    return Built(requests, [*notes, *made.notes()])


def _of_lengths(wanted: Wanted, drawn: Sequence[Lengths]) -> Built:
    lengths, notes = within(drawn, wanted.limit)
    made = material(wanted)
    source = draws(wanted.settings.seed, Stream.CONTENTS)
    shapes = (Shape(draw_codes(source, each.input_tokens), each.output_tokens) for each in lengths)
    requests = list(made.requests(shapes))
    return Built(requests, [*notes, *made.notes()])


def _prefixed(wanted: Wanted, lengths: Sequence[Lengths]) -> Iterator[Shape]:
    seed, tokens = wanted.settings.seed, wanted.workload.prefix_tokens
    source = draws(seed, Stream.CONTENTS)
    count = min(wanted.workload.prefixes, len(lengths))
    prefixes = [draw_codes(draws(seed, Stream.PREFIXES, number), tokens) for number in range(1, count + 1)]
    for each, (number, prefix) in zip(lengths, cycle(enumerate(prefixes, 1)), strict=False):
        codes = np.concatenate([prefix, draw_codes(source, each.input_tokens)])
        yield Shape(codes, each.output_tokens, None, f"prefix {number}", number, tokens)
