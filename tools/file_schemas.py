"""The JSON Schemas of job files and profiles, for editors."""

from __future__ import annotations

from typing import Any

from tools.type_schemas import schema_of
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobDocument, JobFile
from trtllm_hpc.config.layers import RELATIVE_PATHS
from trtllm_hpc.config.validate import section_at


def job_schema() -> dict[str, Any]:
    """Return the schema of a job file, without rules between keys, which ``trtllm-hpc doctor`` checks."""
    schema = _job_schema(JobDocument)
    for section in (schema, *schema["$defs"].values()):
        for key, field in section["properties"].items():
            if key != "extends" and key not in section.get("required", ()):
                _allow_null(field, schema["$defs"])
    # A file that extends another needs no keys of its own.
    required = [{"required": schema.pop("required")}, {"required": ["extends"]}]
    sections = schema.pop("$defs")
    head = {key: schema.pop(key) for key in ("$schema", "title")}
    # A profile's job_defaults is a job file without required keys.
    return {
        **head,
        "$ref": "#/$defs/JobDefaults",
        "anyOf": required,
        "$defs": {**sections, "JobDefaults": schema},
    }


def _allow_null(field: dict[str, Any], sections: dict[str, Any]) -> None:
    """Allow ``null`` for an optional key: ``null`` removes the value of the extended file."""
    if "$ref" in field:
        sections[field["$ref"].rpartition("/")[2]]["type"] = ["object", "null"]
    elif "anyOf" in field:
        field["anyOf"] += [{"type": "null"}] * ({"type": "null"} not in field["anyOf"])
    elif "type" in field:
        kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
        field["type"] = [*kinds, *(["null"] * ("null" not in kinds))]
    if None not in field.get("enum", [None]):
        field["enum"].append(None)
    for inner in (*field.get("patternProperties", {}).values(), field.get("additionalProperties")):
        if isinstance(inner, dict):
            _allow_null(inner, sections)


def _job_schema(model: type[JobFile]) -> dict[str, Any]:
    schema: dict[str, Any] = _portable(schema_of(model, "validation", "trtllm-hpc job file"))
    for path in RELATIVE_PATHS:
        section = section_at(JobFile, path[:-1])
        assert section is not None
        del schema["$defs"][section.__name__]["properties"][path[-1]]["pattern"]
    return schema


def cluster_schema() -> dict[str, Any]:
    """Return the schema of a profile; ``job_defaults`` is a job file without required keys."""
    schema: dict[str, Any] = _portable(schema_of(ClusterProfile, "validation", "trtllm-hpc cluster profile"))
    defaults = schema["properties"]["job_defaults"]
    schema["properties"]["job_defaults"] = {
        "description": defaults["description"],
        "default": defaults["default"],
        "$ref": "job.schema.json#/$defs/JobDefaults",
    }
    return schema


def _portable(schema: Any) -> Any:
    r"""Replace ``\z``, which is not in JSON Schema's regular expressions, by ``$``, which means the same."""
    if isinstance(schema, list):
        return [_portable(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: _portable(value) for key, value in schema.items()}
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = schema["pattern"].replace(r"\z", "$")
    if "patternProperties" in schema:
        named = schema["patternProperties"].items()
        schema["patternProperties"] = {key.replace(r"\z", "$"): value for key, value in named}
        schema["additionalProperties"] = False
    return schema
