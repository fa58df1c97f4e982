"""Job files from results of NVIDIA's ``aiconfigurator``, which predicts the best settings of a model.

``--save-dir`` gets a folder ``MODE/topN`` for each proposal, where a mode is ``agg`` or ``disagg``: the LLM
API's configuration of each kind of server, and ``generator_config.yaml`` with their numbers. Row N of
``best_config_topn.csv`` has the prediction; ``exp_config.yaml`` has what was asked. Read with 0.12.0.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from trtllm_hpc.config.dump import compact_yaml
from trtllm_hpc.config.files import read_tree
from trtllm_hpc.config.job import LLM_API_KEYS
from trtllm_hpc.errors import ConfigError, Diagnostic

_GENERATOR, _PREDICTIONS = "generator_config.yaml", "best_config_topn.csv"
_EXPECTED = "name the folder that aiconfigurator has made below its --save-dir, with agg/top1 or disagg/top1"
_QUESTION = """\
Proposals of NVIDIA's aiconfigurator for {model} on {gpus} GPUs ({system}).
Asked for: prompts of {isl} tokens, answers of {osl}, {slo}.
Predicted with measurements of TensorRT-LLM {version}.
The image of the profile decides which release serves; serve.image names another image.
"""
_RESULT = "{} GPUs, predicted {:.0f} tokens/s/GPU, {:.1f} tokens/s/user, TTFT {:.0f} ms, TPOT {:.1f} ms"
_NOTHING = object()


class Proposal(NamedTuple):
    """A proposal for TensorRT-LLM."""

    name: str
    """Such as ``agg-top1``."""
    model: str
    """The model's folder, or its name at Hugging Face."""
    job: dict[str, Any]
    """Sections of a job file."""
    question: str
    prediction: str
    """What aiconfigurator was asked, in lines of text, and in one line what it has predicted."""


def proposals_yaml(folder: Path, name: str, model: str | None, top: int | None = None) -> tuple[str, int]:
    """Return the job file of a proposal, or of several as the variants of a sweep, and their number.

    Args:
        folder: that of a result, of one of its modes, or of a single proposal.
        model: the model's folder; ``None``: the one that aiconfigurator has read.
        top: the most proposals of each mode.

    Raises:
        ConfigError: nothing is proposed, or not for TensorRT-LLM; a file is damaged; or no folder is known.
    """
    folder = folder.resolve()
    found = sorted(
        (it.parent.parent, int(top_n[1]))
        for depth in range(3)
        for it in folder.glob("*/" * depth + _GENERATOR)
        if (top_n := re.fullmatch("top([1-9][0-9]*)", it.parent.name)) and int(top_n[1]) <= (top or math.inf)
    )
    if not found:
        raise _error(folder, "has no proposal of aiconfigurator")
    proposals = [_proposal(mode, number) for mode, number in found]
    first, common = proposals[0], _common([it.job for it in proposals])
    if model is None and not Path(first.model).is_absolute():
        raise _error(folder, f"names the model {first.model}, and not its folder", "add --model FOLDER")
    head = first.question + (first.prediction if len(proposals) == 1 else "")
    text = "".join(f"# {line}\n" for line in head.splitlines())
    text += compact_yaml({"name": name, "model": {"path": model or first.model}, **common})
    text += "\nsweep:\n  variants:\n" if len(proposals) > 1 else ""
    for it in proposals if len(proposals) > 1 else ():
        text += f"    {it.name}: # {it.prediction}\n{compact_yaml(_without(it.job, common), '      ')}"
    return text, len(proposals)


def _proposal(mode: Path, number: int) -> Proposal:
    folder, name = mode / f"top{number}", re.sub("[^A-Za-z0-9._]+", "-", mode.name)
    roles = ("prefill", "decode") if (folder / "prefill_config.yaml").exists() else ("agg",)
    generator = _plain(folder / _GENERATOR)
    try:
        rows = list(csv.DictReader((mode / _PREDICTIONS).read_text(encoding="utf-8").splitlines()))
        row = {str(key).removeprefix("(p)"): value for key, value in rows[number - 1].items()}
        if row["backend"] != "trtllm":
            raise _error(folder, f"is for {row['backend']}, not for TensorRT-LLM", "choose --backend trtllm")
        model, counts = str(generator["ServiceConfig"]["model_path"]), generator["WorkerConfig"]
        servers = [_Servers(folder / f"{it}_config.yaml", int(counts[f"{it}_workers"])) for it in roles]
        gpus = sum(it.gpus for it in servers)
        # A row is about the fewest servers that answer together; a proposal may have several such groups.
        in_flight = round(float(row["concurrency"]) * gpus / float(row["num_total_gpus"]))
        benchmark = _benchmark(row, in_flight, (mode / "exp_config.yaml").read_text(encoding="utf-8"))
        figures = [float(row[it]) for it in ("tokens/s/gpu", "tokens/s/user", "ttft", "tpot")]
        question = _QUESTION.format_map({**row, "model": model, "gpus": gpus, "slo": benchmark["slo"]})
    except (LookupError, TypeError, ValueError, ArithmeticError, OSError) as error:
        raise _error(
            folder, f"is not as aiconfigurator 0.12 writes it: {type(error).__name__}: {error}"
        ) from None
    engine, own = _phases(*servers) if servers[1:] else (servers[0].engine, {"instances": servers[0].count})
    job = {
        "engine": {"backend": "pytorch", **engine},
        # Enough time for the largest models, as in the shipped job files.
        "serve": {**own, "time_limit_minutes": 240, "ready_timeout_seconds": 3600},
        "companion": {"time_limit_minutes": 150, "endpoint_timeout_seconds": 5400, "benchmark": benchmark},
    }
    return Proposal(f"{name}-top{number}", model, job, question, _RESULT.format(gpus, *figures))


class _Servers:
    """Servers with one configuration."""

    def __init__(self, configuration: Path, count: int) -> None:
        llm_api = {key: it for key, it in _plain(configuration).items() if key != "backend"}  # PyTorch
        keys = {own: llm_api.pop(key) for key, own in LLM_API_KEYS.items() if key in llm_api}
        self.count, self.llm_api, self.engine = count, llm_api, {**keys, "llm_api": llm_api}
        self.gpus = count * int(keys["tensor_parallel"]) * int(keys["pipeline_parallel"])


def _phases(prefill: _Servers, decode: _Servers) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return keys of ``engine`` and ``serve`` for servers of one phase each."""
    # A phase replaces the whole value of a key of engine.llm_api.
    both = {key: it for key, it in prefill.llm_api.items() if decode.llm_api.get(key, _NOTHING) == it}
    phases = {
        phase: {"servers": it.count, **it.engine, "llm_api": _without(it.llm_api, both)}
        for phase, it in (("context", prefill), ("generation", decode))
    }
    return {"llm_api": both}, {"mode": "disaggregated", "disaggregated": phases}


def _benchmark(row: Mapping[str, str], in_flight: int, asked: str) -> dict[str, Any]:
    """Return the load that the prediction is about; as many requests as aiconfigurator's ``bench_run.sh``."""
    isl, osl, prefix = (int(float(row[it])) for it in ("isl", "osl", "prefix"))
    kind = {"kind": "shared-prefix", "prefix_tokens": prefix} if prefix else {"kind": "normal"}
    # The text of exp_config.yaml has aliases, which no job file may have: its numbers are found without YAML.
    limits = dict(re.findall(r"(?m)^(request_latency|ttft|tpot): ([0-9]+(?:\.[0-9]+)?)$", asked))
    if "request_latency" in limits:
        limits = {"latency": limits["request_latency"]}
    return {
        "workload": {**kind, "input_tokens": isl - prefix, "output_tokens": osl},
        "exact_output": True,
        "slo": ",".join(f"{key}.mean<={float(ms):g}ms" for key, ms in limits.items()) or None,
        "concurrency": in_flight,
        "requests": 20 * in_flight,
        "warmup_requests": 2 * in_flight,
        "request_timeout_seconds": 60 * math.ceil(5 * float(row["request_latency"]) / 60_000),
    }


def _plain(path: Path) -> dict[str, Any]:
    tree, wrong = read_tree(path, "file of aiconfigurator")
    if tree is None or wrong:
        raise ConfigError([replace(it, hint=_EXPECTED) for it in wrong])
    return dict(tree.plain())


def _error(path: Path, message: str, hint: str = _EXPECTED) -> ConfigError:
    return ConfigError([Diagnostic("not-a-proposal", message, str(path), hint=hint)])


def _common(sections: Sequence[Any]) -> dict[str, Any]:
    """Return what all sections say."""
    common = {}
    for key, value in sections[0].items():
        values = [it.get(key, _NOTHING) for it in sections]
        if all(it == value for it in values):
            common[key] = value
        elif all(isinstance(it, dict) for it in values) and (inner := _common(values)):
            common[key] = inner
    return common


def _without(section: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a section says besides what is common."""
    return {
        key: _without(value, common[key]) if key in common else value
        for key, value in section.items()
        if value != common.get(key, _NOTHING)
    }
