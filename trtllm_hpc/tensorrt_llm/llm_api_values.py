"""Values of the LLM API's configuration that ``trtllm-serve`` refuses, release by release.

Seen by running ``update_llm_args_with_extra_dict`` and ``TorchLlmArgs`` of TensorRT-LLM 1.3.0rc3
(``tensorrt_llm/llmapi/llm_args.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtllm_hpc.tensorrt_llm.llm_api import has_key_facts, sections, variants_of
from trtllm_hpc.tensorrt_llm.releases import Release
from trtllm_hpc.tensorrt_llm.releases.data_files import parsed
from trtllm_hpc.tensorrt_llm.releases.learned import learned

Values = Mapping[str, Any]
WrongValues = Iterator[tuple[str, str, str]]
"""Paths, such as ``kv_cache_config.max_attention_window``, each with what is wrong and what to do."""


def wrong_values(release: Release, configuration: Values) -> WrongValues:
    """Yield the values that the release refuses; none for a release whose keys are not known, or learned."""
    is_read = has_key_facts(release) and release.version not in learned()
    for name, section in sections().items() if is_read else ():
        values: Any = configuration
        for part in name.split(".") if name else ():
            values = values.get(part) if isinstance(values, Mapping) else None
        if isinstance(values, Mapping):
            for key, wrong, remedy in _wrong(section, values, release.version):
                yield f"{name}.{key}" if name else key, wrong, remedy


def _wrong(section: Values, values: Values, version: str) -> WrongValues:
    for key, first in section.get("not_null", {}).items():
        if key in values and values[key] is None and parsed(version) < parsed(first):
            yield key, "the server takes no null here", "leave the key out"
    for key, words in section.get("values", {}).items():
        there = [word for word, first in words.items() if parsed(first) <= parsed(version)]
        if there and isinstance(values.get(key), str) and values[key] not in there:
            yield key, "is not a value of this key here", f"take {', '.join(there)}"
    for key in section.get("positive", ()):
        each = values.get(key) if isinstance(values.get(key), list) else [values.get(key)]
        if not each or any(isinstance(number, int) and number <= 0 for number in each):
            yield key, "must be above 0", "raise it, or leave the key out"
    for key in section.get("fraction", ()):
        if isinstance(values.get(key), int | float) and not 0 <= values[key] <= 1:
            yield key, "must be between 0 and 1", "write a fraction, such as 0.9"
    if values and "by" in section:
        yield from _wrong_variant(section, values, version)
    for one, other in section.get("either", {}).items():
        if values.get(one) and values.get(other):
            yield one, f"does not fit together with {other}", "set only one of the two"


def _wrong_variant(section: Values, values: Values, version: str) -> WrongValues:
    by, there, same = section["by"], variants_of(section, version), section.get("same", {})
    chosen = values.get(by)
    if not isinstance(chosen, str) or chosen not in there:
        yield by, "must be a value of this key on PyTorch here", f"take {', '.join(there)}"
        return
    given = {same.get(key, key) for key, value in values.items() if value is not None}
    for key, first in there[chosen].get("required", {}).items():
        if parsed(first) <= parsed(version) and same.get(key, key) not in given:
            yield key, f"is missing, and {chosen} needs it", "set it"
