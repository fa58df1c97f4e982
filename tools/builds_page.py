"""``docs/reference/builds.md``: which release builds which family in which way, as the rules judge it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from trtllm_hpc.backends import shared_rules
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines import build_rules
from trtllm_hpc.engines.facts import EngineFacts
from trtllm_hpc.tensorrt_llm.releases.families import families
from trtllm_hpc.tensorrt_llm.releases.release import Release, releases

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "builds.md"
SITE = ClusterProfile.model_validate({"name": "site", "gpus_per_node": 8, "compute_capability": "10.0"})
WEIGHTS = "/models/quantized"

Engine = Mapping[str, Any]


def _quantized(method: str | None, **keys: Any) -> Engine:
    return {"quantization": {"method": method, **keys}}


def _drafted(mode: str, **keys: Any) -> Engine:
    return {"speculative": {"mode": mode, **keys}}


METHODS: Mapping[str, Sequence[Engine]] = {
    "plain": ({},),
    **{
        f"`{method}`": (_quantized(method),)
        for method in ("int8_wo", "int4_wo", "int8_sq", "fp8", "int4_awq", "w4a8_awq", "fp8_rowwise", "nvfp4")
    },
    "`auto`": (_quantized("auto", auto_formats=["fp8", "int4_awq"], auto_bits=5.0),),
    # Some releases read these weights in a place of their own, others in the model's folder.
    "`int4_gptq`": (_quantized("int4_gptq", checkpoint=WEIGHTS), _quantized("int4_gptq")),
    **{
        f"`{method}`": (_quantized(method, checkpoint=WEIGHTS),)
        for method in ("w4a8_qserve_per_group", "w4a8_qserve_per_channel")
    },
    "`kv_cache: int8`": (_quantized(None, kv_cache="int8"),),
    "`kv_cache: fp8`": (_quantized(None, kv_cache="fp8"),),
    "LoRA": ({"max_lora_rank": 8, "lora": {"target_modules": ["attn_q"]}},),
    "`draft_tokens_external`": (_drafted("draft_tokens_external", max_draft_len=8),),
    "`lookahead`": (_drafted("lookahead", max_draft_len=8),),
}
"""What a row of the page is called, and the engine keys that say it: one of them is enough."""


@cache
def renders(release: Release, family: str, method: str) -> bool:
    """Whether the release's programs build the family so."""
    return any(_renders(_facts(release, family, engine)) for engine in METHODS[method])


def _renders(facts: EngineFacts) -> bool:
    if facts.command_lines is None or facts.command_lines.problems:
        return False
    return not any(True for rule in build_rules.OF_KEYS for _ in rule(facts))


def refusal(release: Release, family: str, method: str) -> str:
    """What the user is told: every message with its hint."""
    facts = _facts(release, family, METHODS[method][0])
    before = (shared_rules.release_is_known, shared_rules.backend_is_there, *build_rules.OF_PROGRAMS)
    found = [problem for rule in (*before, *build_rules.OF_KEYS) for problem in rule(facts)]
    return " ".join(f"{problem.field}: {problem.message} ({problem.hint})" for problem in found)


def _facts(release: Release, family: str, engine: Engine) -> EngineFacts:
    by_build_py = release.command("build.py", family) is not None
    # Whether what build.py makes batches in flight is another question.
    job = _job(family, json.dumps(engine), "V1" if by_build_py else "inflight_fused_batching")
    keys = {"tensorrt_llm_version": release.version}
    job = job.model_copy(update={"engine": job.engine.model_copy(update=keys)})
    return EngineFacts(job, SITE)


@cache
def _job(family: str, engine: str, batching: str) -> JobFile:
    keys = {"backend": "tensorrtllm", "dtype": "float16", **json.loads(engine)}
    model = {"path": "/models/m", "family": family}
    repository = {"batching_strategy": batching}
    return JobFile.model_validate({"name": "x", "model": model, "engine": keys, "repository": repository})


def page() -> str:
    """The whole page."""
    return head() + "\n".join(map(section, families()))


def head() -> str:
    """What stands before the families."""
    first, *_, last = releases()
    return _HEAD.format(releases=len(releases()), first=first.version, last=last.version)


def section(family: str) -> str:
    """A family: its methods, those of the same releases together."""
    rows: dict[str, list[str]] = {}
    for method in METHODS:
        there = [renders(release, family, method) for release in releases()]
        rows.setdefault(_spans(there), []).append(method)
    lines = [f"| {', '.join(methods)} | {span} |\n" for span, methods in rows.items()]
    return f"## {family}\n\n| built | by |\n|---|---|\n{''.join(lines)}"


def _spans(there: Sequence[bool]) -> str:
    """The releases that are there, as people write them: ``0.5.0 to 0.7.1, from 0.9.0 on``."""
    versions, spans = [release.version for release in releases()], []
    for place, version in enumerate(versions):
        if there[place] and (place == 0 or not there[place - 1]):
            end = next((at for at in range(place, len(there)) if not there[at]), None)
            last = versions[end - 1] if end is not None else None
            spans.append(
                f"from {version} on"
                if last is None
                else version
                if last == version
                else f"{version} to {last}"
            )
    return ", ".join(spans) or "none"


_HEAD = """# Which release builds what

What `trtllm-hpc` renders for each `model.family`, of the {releases} releases from {first} to {last}. A
job for any other is refused before the queue, and the message names the first release that builds the
engine, if a later one does. Rows have values of `engine.quantization.method`, a KV cache
(`engine.quantization.kv_cache`), LoRA (`engine.max_lora_rank`) and values of `engine.speculative.mode`;
`plain` is none of these. `int4_gptq` and `w4a8_qserve_...` start from weights that are quantized
already. [Commands of the job file](../how-to/engines.md#a-model-of-another-family) build any other model.

That a release renders it says that upstream's programs have the options and, where this is known, that
they take the family ([how reliable the lists are](releases.md#how-reliable-the-lists-are)), not that
each engine was built.

The page is made of the data of the releases and the rules (`make golden`).

"""
