"""Strategies: hostile text, and files that are mostly wrong."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
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
