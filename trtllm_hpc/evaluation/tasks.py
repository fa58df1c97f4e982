"""Prepare tasks of ``lm-eval`` and their data in a local folder, and load them without a network.

<data>/tasks/NAME.json   record of a prepared task
       datasets/KEY/     a data set as Arrow files, which need no network, lock or write permission
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from trtllm_hpc.config.benchmark import Evaluation
from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.paths import read_json, user_cache, write_folder_aside, write_json

OWN = Path(str(files("trtllm_hpc.jobs"))) / "tasks"
"""The folder of the shipped tasks and settings."""


def refusal(code: str, message: str, hint: str) -> ConfigError:
    """Return the error for a task that cannot be used."""
    return ConfigError([Diagnostic(code, message, field="companion.evaluate.tasks", hint=hint)])


def data_folder(settings: Evaluation) -> Path:
    """Return the folder of the data sets."""
    return Path(settings.data) if settings.data else user_cache() / "evaluation"


def shipped_settings() -> dict[str, dict[str, Any]]:
    """Return the shipped settings by task."""
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return dict(toml.loads((OWN / "settings.toml").read_text(encoding="utf-8")))


def asked_as(task: str, settings: Evaluation) -> dict[str, Any]:
    """Return the settings of a task: the job file's, else the shipped ones; ``None``: the task's own."""
    chosen = dict.fromkeys(("protocol", "few_shot", "metric", "max_tokens", "temperature"))
    chosen |= {"protocol": "completions", **shipped_settings().get(task, {})}
    return chosen | {key: value for key in chosen if (value := getattr(settings, key)) is not None}


def is_shipped(task: str) -> bool:
    """Return whether a task is shipped, with its data."""
    return (OWN / f"{task}.yaml").is_file()


def check_task(task: str, settings: Evaluation) -> str:
    """Return the folder of a usable task.

    Raises ConfigError without ``lm-eval``, for an unknown task and for missing data.
    """
    home, data = _lm_eval_folder(), data_folder(settings)
    if is_shipped(task):
        return str(OWN)
    known = read_json(data / "tasks" / f"{task}.json")
    if known is None or not all((data / "datasets" / key).is_dir() for key in known["datasets"]):
        named = re.search(r"^dataset_path: *(\S+)", _definition(home, task).read_text("utf-8"), re.MULTILINE)
        message = f"the data of task {task}{f' ({named[1]})' if named else ''} are not in {data}"
        command = f"trtllm-hpc evaluate --prepare {task}{f' --set data={data}' if settings.data else ''}"
        raise refusal("evaluation-data", message, f"on a machine with internet: {command}")
    return str(home / known["home"])


def _lm_eval_folder() -> Path:
    spec = find_spec("lm_eval")
    if spec is None or spec.origin is None:
        raise refusal("no-lm-eval", "lm-eval is not installed", "pip install 'trtllm-hpc[evaluate]'")
    return Path(spec.origin).parent / "tasks"


def _definition(home: Path, task: str) -> Path:
    """Return the file that defines a task or group of ``lm-eval``. Raises ConfigError."""
    line = re.compile(rf"^(?:task|group): *['\"]?{re.escape(task)}['\"]? *$", re.MULTILINE)
    for file in chain(home.rglob(f"{task}.yaml"), home.rglob("*.yaml")):
        if line.search(file.read_text(encoding="utf-8", errors="replace")):
            return file
    shipped = ", ".join(sorted(file.stem for file in OWN.glob("*.yaml")))
    hint = f"shipped: {shipped}; 'lm-eval ls tasks' lists all"
    raise refusal("unknown-task", f"no task is called {task!r}", hint)


def load(task: str, settings: Evaluation) -> dict[str, Any]:
    """Return the parts of a task by name, as ``lm-eval``'s objects, without a network."""
    home, few_shot = check_task(task, settings), asked_as(task, settings)["few_shot"]
    with _local_data(data_folder(settings), fetch=False):
        parts = _built(task, home)
    for part in parts.values():
        # Like lm-eval's own command, keep 0 for a task that must not have examples.
        own = part.get_config("num_fewshot")
        part.set_config(key="num_fewshot", value=(own or 0) if few_shot is None or own == 0 else few_shot)
        part.set_fewshot_seed(seed=1234)
        if (process := part.get_config("process_docs")) is not None:
            part.set_config(key="process_docs", value=_once(process))
    return parts


def _once(process: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that processes each data set only once.

    Some tasks shuffle choices, and ``lm-eval`` reads their documents again when it scores the answers.
    """
    results: dict[int, Any] = {}

    def processed(data: Any) -> Any:
        random.seed(0)  # the same questions in every run
        return results[id(data)] if id(data) in results else results.setdefault(id(data), process(data))

    return processed


def prepare(task: str, settings: Evaluation) -> int:
    """Download the data of a task into the local folder; return the number of its questions.

    Raises ConfigError for an unknown task, for a task that needs more than generated answers or runs code of
    the model, and if the data cannot be downloaded.
    """
    home, folder = _lm_eval_folder(), data_folder(settings)
    with _local_data(folder, fetch=True) as used:
        place = _definition(home, task).parent
        try:
            try:
                parts = _built(task, place).values()
            except (AttributeError, KeyError, TypeError):  # parts of the group are in other folders
                place = home
                parts = _built(task, place).values()
        except (OSError, ValueError, RuntimeError) as error:
            message = f"the data of task {task} cannot be downloaded: {' '.join(str(error).split())[:300]}"
            hint = (
                "curl -sI https://huggingface.co shows whether the hub answers; for a gated data set accept "
            )
            hint += "the terms on its page there, and export HF_TOKEN=..."
            raise refusal("evaluation-data", message, hint) from error
    if any(part.OUTPUT_TYPE != "generate_until" for part in parts):
        message = f"task {task} compares log-likelihoods, which a server with OpenAI's protocol does not have"
        raise refusal("not-generated", message, "name a task with generated answers, e.g. mmlu_generative")
    if any(getattr(part, "UNSAFE_CODE", False) for part in parts):
        message = f"task {task} runs code that the model writes, with your rights"
        raise refusal("runs-code", message, "name another task")
    known = {"home": str(place.relative_to(home)), "datasets": sorted(used)}
    (folder / "tasks").mkdir(parents=True, exist_ok=True)
    write_json(folder / "tasks" / f"{task}.json", known)
    return sum(len(part.eval_docs) for part in parts)


def _built(task: str, place: str | Path) -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    random.seed(0)
    return dict(TaskManager(include_path=place, include_defaults=False).load([task])["tasks"])


@contextmanager
def _local_data(folder: Path, *, fetch: bool) -> Iterator[set[str]]:
    """Make ``lm-eval`` read data sets from the folder; ``fetch`` downloads missing ones first.

    Yields the keys of the used data sets.
    """
    if not fetch:
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1"}
    os.environ |= {"HF_MODULES_CACHE": str(folder / "modules"), "TQDM_DISABLE": "1"}
    import datasets

    real, used = datasets.load_dataset, set[str]()

    def load_dataset(path: str, name: str | None = None, **options: Any) -> Any:
        shipped = (file for file in OWN.glob("*.jsonl") if options.get("data_files") == {"test": file.name})
        if path == "json" and (own := next(shipped, None)):
            text = own.read_text(encoding="utf-8")
            return {"test": datasets.Dataset.from_list([json.loads(line) for line in text.splitlines()])}
        words = json.dumps([path, name, options], sort_keys=True, default=str)
        key = f"{path.replace('/', '--')}-{hashlib.sha256(words.encode()).hexdigest()[:12]}"
        kept = folder / "datasets" / key
        if fetch and not kept.is_dir():
            data = real(path, name, **options)
            kept.parent.mkdir(parents=True, exist_ok=True)
            with write_folder_aside(kept) as aside:
                data.save_to_disk(str(aside))
        used.add(key)
        return datasets.load_from_disk(str(kept))

    datasets.disable_caching()
    datasets.load_dataset = load_dataset
    try:
        yield used
    finally:
        datasets.load_dataset = real
