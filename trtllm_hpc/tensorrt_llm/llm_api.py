"""Facts about ``trtllm-serve`` and the LLM API's configuration, release by release.

Everywhere, ``release`` is ``None`` for an image that is newer than all known releases; the newest facts then
apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from trtllm_hpc.config.diagnostics import nearest
from trtllm_hpc.tensorrt_llm.releases.data_files import (
    NEWER,
    UNRELEASED,
    beginning,
    listed_versions,
    parsed,
    read_data,
)
from trtllm_hpc.tensorrt_llm.releases.programs import load_program, newest_program
from trtllm_hpc.tensorrt_llm.releases.release import Release

SERVER = "trtllm-serve"
FRONT = "front"
"""Section in the data with the keys of the file of ``trtllm-serve disaggregated``."""


def engine_backend(release: Release | None) -> str | None:
    """Return the value of ``--backend`` for an engine; ``None``: the release needs no option for engines."""
    program = newest_program(SERVER) if release is None else load_program(release.version, SERVER)
    option = None if program is None else program.options.get("--backend")
    return next((word for word in ("tensorrt", "trt") if option and word in option.choices), None)


@dataclass(frozen=True)
class UnknownKey:
    """A key that a release's LLM API does not take."""

    path: str
    """Path of the key, e.g. ``kv_cache_config.dtyp``."""
    message: str
    """Why the key is refused, as the rest of a sentence that begins with the key."""
    suggestion: str | None
    """The key that was probably meant, as a path from the top, or a few words."""


def has_key_facts(release: Release | None) -> bool:
    """Return whether the keys of the release's LLM API are known."""
    return release is None or parsed(release.version) >= parsed(_data_versions()[0])


def unknown_keys(
    release: Release | None, configuration: Mapping[str, Any], section: str = ""
) -> list[UnknownKey]:
    """Return the keys of a configuration of the LLM API on PyTorch that the release does not take.

    ``section`` is the section that ``configuration`` contains; ``""``: the whole configuration.

    The list is empty for releases whose keys are not known. Below a key that takes any value, nothing is
    checked.
    """
    if not has_key_facts(release):
        return []
    return list(_unknown(section, configuration, NEWER if release is None else release.version))


def _unknown(path: str, values: Mapping[str, Any], version: str) -> Iterator[UnknownKey]:
    section = _sections().get(path)
    if section is None or parsed(section.get("checked_since", "0")) > parsed(version):
        return
    known = _keys(path, version, values)
    for key, value in values.items():
        name = str(key)
        if name in known:
            if isinstance(value, Mapping):
                yield from _unknown(_below(path, name), value, version)
            continue
        what = "the front's file" if path == FRONT else "the LLM API"
        having = [other for other in _data_versions() if name in _keys(path, other, values)]
        later = [other for other in having if parsed(other) > parsed(version)]
        suggestion = _replacement(path, name, known)
        if later:
            message = f"is not a key of {what} here: it {beginning(later[0])}"
        elif having:
            message = f"is not a key of {what} here: the last release with it is {having[-1]}"
        else:
            message = f"is not a key of {what} on PyTorch in any release known here"
            suggestion = suggestion or _meant(path, name, known, version)
        yield UnknownKey(_below(path, name), message, suggestion)


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _sections() -> Mapping[str, Mapping[str, Any]]:
    return cast("Mapping[str, Mapping[str, Any]]", read_data("llm_api")["section"])


@cache
def _data_versions() -> tuple[str, ...]:
    """Return the releases whose keys are known, oldest first."""
    first = min(read_data("llm_api")["read"], key=parsed)
    return (*(version for version in listed_versions() if parsed(version) >= parsed(first)), UNRELEASED)


def _keys(path: str, version: str, values: Mapping[str, Any]) -> set[str]:
    """Return the keys of a section in a release; ``values`` selects the section's variant."""
    section = _sections().get(path, {})
    known = _variants(section, version)
    chosen = values.get(section.get("by", ""))
    # If no known variant is selected, the keys of all variants count.
    variants = [known[chosen]] if isinstance(chosen, str) and chosen in known else known.values()
    return set().union(*(_of_table(table, version) for table in (section, *variants)))


def _variants(section: Mapping[str, Any], version: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the variants of a section in a release, by the value that selects them."""
    variants: Mapping[str, Mapping[str, Any]] = section.get("variant", {})
    here = parsed(version)
    return {
        name: variants[table.get("like", name)]
        for name, table in variants.items()
        if parsed(table.get("first", "0")) <= here < parsed(table.get("ended", f"{NEWER}.1"))
    }


def _of_table(table: Mapping[str, Any], version: str) -> set[str]:
    here = parsed(version)
    since, until = table.get("since", {}), table.get("until", {})
    begun = {*table.get("keys", ()), *(key for key in until if key not in since)}
    begun |= {key for key, first in since.items() if parsed(first) <= here}
    gone = {key for key, end in until.items() if parsed(end) <= here}
    for key, (end, again) in table.get("missing", {}).items():
        if parsed(end) <= here < parsed(again):
            gone.add(key)
    return begun - gone


def _replacement(path: str, key: str, known: set[str]) -> str | None:
    """Return the replacement of a key in the data, for this section or one of its variants."""
    section = _sections().get(path, {})
    for table in (section, *section.get("variant", {}).values()):
        replacement: str | None = table.get("replaced_by", {}).get(key)
        if replacement is not None:
            return f"{path}.{replacement}" if path and replacement in known else replacement
    return None


def _meant(path: str, key: str, known: set[str], version: str) -> str | None:
    """Return the same key in another section of the release, else the most similar key of this section."""
    top = _keys("", version, {})
    for other in _sections():
        exists = other.partition(".")[0] in {"", *top}
        if other != path and exists and key in _keys(other, version, {}):
            return _below(other, key)
    near = nearest(key, sorted(known))
    return _below(path, near) if near else None


WrongValues = Iterator[tuple[str, str, str]]
"""Path of a value, such as ``kv_cache_config.max_attention_window``, its fault, and the remedy."""


def wrong_values(release: Release, configuration: Mapping[str, Any]) -> WrongValues:
    """Yield the values that the release refuses; nothing for a release whose keys are not known."""
    for name, section in _sections().items() if has_key_facts(release) else ():
        values: Any = configuration
        for part in name.split(".") if name else ():
            values = values.get(part) if isinstance(values, Mapping) else None
        if isinstance(values, Mapping):
            for key, wrong, remedy in _wrong(section, values, release.version):
                yield _below(name, key), wrong, remedy


def _wrong(section: Mapping[str, Any], values: Mapping[str, Any], version: str) -> WrongValues:
    for key, first in section.get("not_null", {}).items():
        if key in values and values[key] is None and parsed(version) < parsed(first):
            yield key, "the server takes no null here", "leave the key out"
    for key, words in section.get("values", {}).items():
        known = [word for word, first in words.items() if parsed(first) <= parsed(version)]
        if known and isinstance(values.get(key), str) and values[key] not in known:
            yield key, "is not a value of this key here", f"take {', '.join(known)}"
    for key in section.get("positive", ()):
        numbers = values.get(key) if isinstance(values.get(key), list) else [values.get(key)]
        if not numbers or any(isinstance(number, int) and number <= 0 for number in numbers):
            yield key, "must be above 0", "raise it, or leave the key out"
    for key in section.get("fraction", ()):
        if isinstance(values.get(key), int | float) and not 0 <= values[key] <= 1:
            yield key, "must be between 0 and 1", "write a fraction, such as 0.9"
    if values and "by" in section:
        by, variants = section["by"], _variants(section, version)
        chosen = values.get(by)
        if isinstance(chosen, str) and chosen in variants:
            yield from _missing(chosen, variants[chosen], section, values, version)
        else:
            yield by, "must be a value of this key on PyTorch here", f"take {', '.join(variants)}"
    yield from _missing("the section", section, section, values, version)
    for key, other in section.get("either", {}).items():
        if values.get(key) and values.get(other):
            yield key, f"does not fit together with {other}", "set only one of the two"


def _missing(
    who: str, table: Mapping[str, Any], section: Mapping[str, Any], values: Mapping[str, Any], version: str
) -> WrongValues:
    """Yield the required keys that a section, or the ``table`` of its variant, lacks."""
    same = section.get("same", {})
    set_keys = {same.get(key, key) for key, value in values.items() if value is not None}
    for key, first in table.get("required", {}).items():
        if parsed(first) <= parsed(version) and same.get(key, key) not in set_keys:
            yield key, f"is missing, and {who} needs it", "set it"
