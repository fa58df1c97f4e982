"""Values of the LLM API's configuration that ``trtllm-serve`` refuses, release by release.

Seen by running ``update_llm_args_with_extra_dict`` and ``TorchLlmArgs`` of TensorRT-LLM 1.3.0rc3
(``tensorrt_llm/llmapi/llm_args.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_hpc.tensorrt_llm.llm_api import has_key_facts, sections, variants_of
from trtllm_hpc.tensorrt_llm.releases import Release
from trtllm_hpc.tensorrt_llm.releases.data_files import parsed


@dataclass(frozen=True)
class WrongValue:
    """A value that the server refuses."""

    path: str
    """E.g. ``kv_cache_config.max_attention_window``."""
    message: str
    hint: str
    value: Any


def wrong_values(release: Release, configuration: Mapping[str, Any]) -> Iterator[WrongValue]:
    """Yield the values of a configuration for ``trtllm-serve`` that the release refuses.

    Nothing for releases whose keys are not known.
    """
    if not has_key_facts(release):
        return
    for name, section in sections().items():
        values: Any = configuration
        for part in name.split(".") if name else ():
            values = values.get(part) if isinstance(values, Mapping) else None
        if isinstance(values, Mapping):
            path = f"{name}." if name else ""
            yield from _nulls_and_words(path, section, values, release.version)
            yield from _numbers(path, section, values)
            if values and "by" in section:
                yield from _variant(path, section, values, release.version)
    yield from _graph_sizes(configuration.get("cuda_graph_config"))


def _nulls_and_words(
    path: str, section: Mapping[str, Any], values: Mapping[str, Any], version: str
) -> Iterator[WrongValue]:
    for key, first in section.get("not_null", {}).items():
        if key in values and values[key] is None and parsed(version) < parsed(first):
            yield WrongValue(path + key, "the server takes no null here", "leave the key out", None)
    for key, words in section.get("values", {}).items():
        there = [word for word, first in words.items() if parsed(first) <= parsed(version)]
        if there and isinstance(values.get(key), str) and values[key] not in there:
            yield WrongValue(
                path + key, "is not a value of this key here", f"take {', '.join(there)}", values[key]
            )


def _numbers(path: str, section: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[WrongValue]:
    for key in section.get("positive", ()):
        value = values.get(key)
        each = value if isinstance(value, list) else [value]
        if value == [] or any(isinstance(number, int) and number <= 0 for number in each):
            yield WrongValue(path + key, "must be above 0", "raise it, or leave the key out", value)
    for key in section.get("fraction", ()):
        value = values.get(key)
        if isinstance(value, int | float) and not 0 <= value <= 1:
            yield WrongValue(path + key, "must be between 0 and 1", "write a fraction, such as 0.9", value)


def _variant(
    path: str, section: Mapping[str, Any], values: Mapping[str, Any], version: str
) -> Iterator[WrongValue]:
    by, there = section["by"], variants_of(section, version)
    chosen = values.get(by)
    if not isinstance(chosen, str) or chosen not in there:
        message = "must be set" if chosen is None else "is not a value of this key on PyTorch here"
        yield WrongValue(path + by, message, f"take {', '.join(there)}", chosen)
        return
    given = {section.get("same", {}).get(key, key) for key, value in values.items() if value is not None}
    for key, first in there[chosen].get("required", {}).items():
        if parsed(first) <= parsed(version) and section.get("same", {}).get(key, key) not in given:
            yield WrongValue(path + key, f"is missing, and {chosen} needs it", f"set {path}{key}", None)


def _graph_sizes(graphs: Any) -> Iterator[WrongValue]:
    """With both given, the batch sizes must be those that the server makes of the largest."""
    given, largest = (graphs.get(key) if isinstance(graphs, Mapping) else None for key in _SIZES)
    if not (isinstance(given, list) and given and isinstance(largest, int) and largest > 0):
        return
    few = [1, 2, 4, *range(8, 129, 8)] if graphs.get("enable_padding") else [*range(1, 33), 64, 128]
    powers = (2**power for power in range(8, largest.bit_length()))
    made = {size for size in (*few, *powers, largest) if size <= largest}
    if sorted(given, key=str) != sorted(made, key=str):
        message = f"are not the sizes that the server makes up to max_batch_size {largest}"
        yield WrongValue("cuda_graph_config.batch_sizes", message, "set only one of the two", given)


_SIZES = "batch_sizes", "max_batch_size"
