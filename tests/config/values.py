"""Strategies: hostile text, valid models, and files that are mostly wrong."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.config.cluster import ClusterProfile, Container, Triton
from trtllm_hpc.config.engine import Engine
from trtllm_hpc.config.job import (
    Build,
    Companion,
    JobFile,
    Model,
    Request,
    Serve,
)
from trtllm_hpc.config.repository import Repository
from trtllm_hpc.config.validate import all_keys

HOSTILE = [
    "$(touch pwned)", "`touch pwned`", "a; touch pwned", "' ; touch pwned #", '" && touch pwned', "a\nb",
    "\r\n", "../../pwned", "/dev/null", "--output=/tmp/x", "é", "模型", "\U0001f40d", "\u202e", "\x85",
    "\u2028", "\ufeff", "%j", "${HOME}", "\\", "'", '"', "#", "- a", "a: b", "{}", "[", "!!python/object",
    "*x", "&x", "<<", "=", "~", "null", "yes", "on", "no", "0o17", "0x1F", "012", "1_000", "08:00", "1e3",
    ".inf", ".nan", "2001-01-01", "?", "---", "...", " a", "a ", "\t", "", " ", "|", ">", "%YAML 1.1",
    "@x", "true", "1.", "+1", "-", ",",
]  # fmt: skip

hostile = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=30))
printable = hostile.filter(lambda text: text != "" and not any(ord(c) < 32 or ord(c) == 127 for c in text))
any_text = hostile.filter(lambda text: "\0" not in text)
paths = st.one_of(st.none(), printable.map(lambda text: "/" + text))
optional = st.one_of(st.none(), printable)
counts = st.integers(1, 1_000_000)
seconds = st.integers(1, 31_536_000)
minutes = st.integers(1, 525_600)

models = st.one_of(
    st.builds(Model, path=printable.map(lambda text: "/" + text), synthetic=st.none()),
    st.builds(Model, path=st.none(), synthetic=st.just("tiny-llama")),
)
benchmarks = st.builds(
    Benchmark,
    requests=counts,
    rate_per_second=st.floats(min_value=0, max_value=100_000, exclude_min=True),
    arrival=st.sampled_from(["constant", "poisson"]),
    max_tokens=counts,
    request_timeout_seconds=seconds,
)
job_files = st.builds(
    JobFile,
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
    model=models,
    engine=st.builds(
        Engine,
        directory=paths,
        dtype=st.sampled_from(["float32", "bfloat16"]),
        tensor_parallel=st.integers(1, 4096),
    ),
    build=st.builds(Build, memory_gib=st.one_of(st.none(), counts), gpus=st.integers(0, 64)),
    repository=st.builds(Repository, decoupled=st.booleans()),
    serve=st.builds(Serve, nodes=st.one_of(st.none(), st.integers(1, 4096)), time_limit_minutes=minutes),
    companion=st.builds(
        Companion,
        enabled=st.booleans(),
        request=st.builds(Request, prompt=any_text, max_tokens=counts),
        benchmark=st.one_of(st.none(), benchmarks),
    ),
)
options = st.lists(printable.map(lambda text: "-" + text), max_size=3)
clusters = st.builds(
    ClusterProfile,
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
    scheduler=st.sampled_from(["slurm", "local"]),
    slurm_conf=paths,
    partition=optional,
    account=optional,
    gpus_per_node=st.integers(0, 64),
    container=st.builds(
        Container,
        runtime=st.sampled_from(["none", "pyxis"]),
        image=optional,
        mounts=st.lists(printable.filter(lambda text: "," not in text), max_size=2),
    ),
    triton=st.builds(Triton, server=printable, options=st.lists(printable, max_size=2)),
    environment=st.dictionaries(
        st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True), any_text, max_size=3
    ),
    setup=st.lists(printable, max_size=3),
    sbatch_options=options,
    job_defaults=st.dictionaries(printable, st.one_of(hostile, st.lists(hostile, max_size=2)), max_size=2),
)

# Mostly wrong ---------------------------------------------------------------------------

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), hostile,
    st.sampled_from([0, -1, 1, 2, 3, 4096, 4097, 0.5, "tiny-llama", "reference", "local"]),
)  # fmt: skip
trees: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(hostile, inner, max_size=3)),
    max_leaves=6,
)


def settings_for(model: type[JobFile] | type[ClusterProfile]) -> st.SearchStrategy[list[tuple[str, Any]]]:
    """Dotted keys, known ones and others, with values of any type."""
    known = st.sampled_from(list(all_keys(model)))
    keys = st.one_of(known, known, known.map(lambda key: key + "x"), hostile)
    return st.lists(st.tuples(keys, trees), max_size=6)


def nested(settings: list[tuple[str, Any]]) -> dict[str, Any]:
    """The file that these settings make."""
    root: dict[str, Any] = {"name": "fuzz"}
    for key, value in settings:
        *sections, last = key.split(".")
        place = root
        for section in sections:
            below = place.get(section)
            if not isinstance(below, dict):
                below = place[section] = {}
            place = below
        place[last] = value
    return root
