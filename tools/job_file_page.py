"""Write ``docs/reference/job-file.md``: type, default, meaning, backends and effect of every key."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tools.type_schemas import resolved, schema_of, type_text
from trtllm_hpc.backends import BACKENDS
from trtllm_hpc.backends.llm_api import model_yaml
from trtllm_hpc.backends.trtllm_serve import OPTIONS
from trtllm_hpc.config.engine import DEFAULTS, Engine
from trtllm_hpc.config.job import JobDocument, JobFile, Model
from trtllm_hpc.engines.options import ENGINE_KEYS, requests
from trtllm_hpc.engines.template_values import PLANNED
from trtllm_hpc.paths import RunPaths

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "job-file.md"
_ROOT = schema_of(JobDocument, "validation", "job file")
_WAYS = {(name, frontend) for name, frontend, _ in BACKENDS}
_ALL = tuple(dict.fromkeys(name for name, _, _ in BACKENDS))
_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}
_HUGE = 100_000
"""Upper limits from this value on only catch typing errors, so the page omits them."""
_JOB = JobFile(name="job", model=Model(path="/model"))

Node = Mapping[str, Any]


def page() -> str:
    """Return the page as Markdown."""
    return _HEAD + "".join(_sections("", _ROOT, {}))


def _sections(path: str, node: Node, described: dict[str, str]) -> Iterator[str]:
    """Yield a section and its inner sections; ``described`` maps each type to the path that describes it."""
    section = resolved(node, _ROOT)
    inner = {key: ref for key, field in section["properties"].items() if (ref := _section_in(field))}
    places = {_joined(path, key): ref for key, ref in inner.items()}
    new = {place: ref for place, ref in places.items() if described.setdefault(ref, place) == place}
    rows = [
        _row(path, key, field, described.get(inner.get(key, "")), key in section.get("required", ()))
        for key, field in section["properties"].items()
    ]
    title = f"## {path}\n\n{section['description']}" if path else "## Sections"
    yield f"\n{title}\n\n{_table(rows)}"
    for place, ref in new.items():
        yield from _sections(place, {"$ref": ref}, described)


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _section_in(field: Node) -> str | None:
    """Return the reference to a field's section: the field's type, one of its types, or its items' type."""
    parts = (field, *field.get("anyOf", ()), field.get("items") or {})
    return next((part["$ref"] for part in parts if "$ref" in part), None)


def _row(path: str, key: str, field: Node, section: str | None, is_required: bool) -> dict[str, str]:
    """Return the cells of a key; ``section`` is the path that describes the key's section."""
    place = _joined(path, key)
    ways = _takers(place)
    takers = tuple(dict.fromkeys(name for name, _ in ways))
    return {
        "key": f"`{key}`",
        "type": _type(field) if section is None else _link(field, place, section),
        "default": "required" if is_required else _default(place, field, takers or _ALL),
        "meaning": field.get("description") or resolved(field, _ROOT).get("description", ""),
        "backends": _named(ways),
        "becomes": _becomes(place, field) if takers else "",
    }


def _table(rows: list[dict[str, str]]) -> str:
    """Return rows as a Markdown table, without columns that are empty in every row."""
    titles = [title for title in rows[0] if any(row[title] for row in rows)]
    lines = [[row[title].replace("|", "\\|") for title in titles] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in (titles, ["---"] * len(titles), *lines))


def _link(field: Node, place: str, section: str) -> str:
    text = "section" if place == section else f"as `{section.rpartition('.')[2]}`"
    return f"{'list: ' if 'items' in field else ''}[{text}](#{section.replace('.', '')})"


def _type(field: Node) -> str:
    text = type_text(field, _ROOT)
    if '"pattern": "^/"' in json.dumps(field):
        text = text.replace("string", "path")
    limits = [f"{sign} {field[name]:,}" for name, sign in _LIMITS.items() if field.get(name, _HUGE) < _HUGE]
    name, others, more = text.partition(" or ")
    return _unquoted(f"{' '.join([name, *limits])}{others}{more}")


def _default(place: str, field: Node, takers: Collection[str]) -> str:
    """Return the default, and the different defaults of some backends."""
    if "default" not in field:
        return ""
    section, _, key = place.partition(".")
    by_backend = DEFAULTS if section == "engine" else {}
    values = {name: json.dumps(by_backend.get(name, {}).get(key, field["default"])) for name in takers}
    [(usual, _)] = Counter(values.values()).most_common(1)
    others = [f"`{value}` ({name})" for name, value in values.items() if value != usual]
    return _unquoted(", ".join([*others, f"else `{usual}`" if others else f"`{usual}`"]))


def _unquoted(text: str) -> str:
    """Return words without JSON's quotation marks, as in YAML."""
    return re.sub(r'`"([a-zA-Z][\w.-]*)"`', r"`\1`", text)


def _takers(place: str) -> tuple[tuple[str, str], ...]:
    """Return the backends, each with its frontend, that a key has an effect on.

    Empty for a key whose section is the same for all backends.
    """
    section, key, *_ = [*place.split("."), ""]
    if section not in ("engine", "repository", "kv_cache") or not key:
        return ()
    taking = dict.fromkeys(
        (name, frontend)
        for (name, frontend, _), backend in BACKENDS.items()
        if section not in backend.keys or key in backend.keys[section]
    )
    return tuple(taking)


def _named(ways: Collection[tuple[str, str]]) -> str:
    """Return the names of backends. A name has its frontend in brackets if other frontends ignore the key."""
    if set(ways) == _WAYS:
        return "all"
    others = {name for name, _ in _WAYS - set(ways)}
    names = (f"{name} ({frontend})" if name in others else name for name, frontend in ways)
    return ", ".join(dict.fromkeys(names))


def _becomes(place: str, field: Node) -> str:
    """Return the options that a key sets in the LLM API, in engine builds and in Triton's templates."""
    arguments = _arguments(place, field)
    names = {
        "LLM API": [*arguments, *(OPTIONS[name] for name in arguments if name in OPTIONS)],
        "build": _BUILD.get(place, ()),
        "Triton": [name for (_, name), key in PLANNED.items() if key == place],
    }
    return "<br>".join(
        f"{where}: {', '.join(f'`{name}`' for name in dict.fromkeys(several))}"
        for where, several in names.items()
        if several
    )


def _arguments(place: str, field: Node) -> list[str]:
    """Return the arguments of the LLM API that change with the value of a key."""
    top, _, key = place.partition(".")
    if "." in key or field.get("type", "object") == "object":
        return []
    value = next((choice for choice in reversed(field.get("enum", ())) if choice is not None), 2)
    section = getattr(_JOB, top)
    changed = _JOB.model_copy(update={top: section.model_copy(update={key: value})})
    before, after = (
        dict(_leaves(yaml.safe_load(model_yaml(job, RunPaths("/run"))))) for job in (_JOB, changed)
    )
    return [name for name in after if after[name] != before.get(name)]


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _build_options() -> dict[str, list[str]]:
    """Return the options of the programs that build engines, by key of the job file."""
    lora = {"target_modules": ["attn_q"]}
    quantization = {"method": "fp8", "kv_cache": "fp8", "calibration_dataset": "/texts", "checkpoint": "/a"}
    engine = {
        "max_lora_rank": 1,
        "lora": lora,
        "quantization": {**quantization, "calibration_size": 1},
    }
    options: dict[str, list[str]] = {}
    for row in [*ENGINE_KEYS, *(key for key, _ in requests(Engine.model_validate(engine)))]:
        options.setdefault(f"engine.{row.key}", []).extend(mapping.option for mapping in row.mappings)
    return {key: [*dict.fromkeys(names)] for key, names in options.items()}


_BUILD = _build_options()
_HEAD = """\
# The job file

A job file describes the model, the engine, the server and the measurement. This page lists every key by
section. `trtllm-hpc init job --backend pytorch` writes a commented job file. The first line of a job file
names its JSON Schema, with which editors complete and check keys (`trtllm-hpc schema job` prints the schema).
An unknown key is an error that names the nearest valid key. You see all errors at once, with file, line and
fix.

Later layers override earlier layers: built-in defaults, the profile's `job_defaults`, the files that the job
file [extends](../how-to/job-files.md), the job file, `--set engine.tensor_parallel=4`. The result is
`spec.yaml` in the run folder. `null` leaves the choice to the backend, the release or the cluster.

A *time* is a text such as `90s`, `15m`, `1h30m` or `30d`, or in Slurm's format: `30:00` (minutes and
seconds), `4:00:00`, `1-12:00:00`. A bare number has the unit in the key's name. Only the schema has upper
limits of 100,000 and more.

A key keeps its name and its meaning in all releases 0.1.x.

The column *backends* lists the values of `engine.backend` for which the key has an effect; a name in brackets
is the only `serve.frontend` for which it has one. The column *becomes* lists what the key sets:

- *LLM API*: an argument of `tensorrt_llm.LLM`, and the option of `trtllm-serve`, if there is such an option;
  NVIDIA's model for Triton reads `triton_config`. All other arguments belong in `engine.llm_api`.
- *build*: an option of the programs that build an engine, with every name that the option has had.
  `trtllm-hpc versions show RELEASE` lists the options of a release.
- *Triton*: a placeholder in the templates of Triton's model repository.
"""
