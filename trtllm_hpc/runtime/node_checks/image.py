"""Checks in the image: release, programs, options and cache folders; and upstream's parsers on the plan.

Upstream's own parsers read the rendered command lines and files; no model is loaded and no server starts.
They need a Python that can import ``tensorrt_llm``, so they run in the image (``doctor --on-nodes``) or
beside a copy of upstream's Python files (``python -m benchmarks.upstream``). Sources: TensorRT-LLM 1.3.0rc3,
``tensorrt_llm/commands/serve.py``, ``llmapi/llm_args.py``, ``llmapi/disagg_utils.py``.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import Diagnostic, fail, ok, unknown
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.caches import CACHES, OF_HOME, TOP
from trtllm_hpc.runtime.checks import installed_versions, planned_version, wheel_numpy
from trtllm_hpc.runtime.launched_server import alone
from trtllm_hpc.runtime.node_checks.exchange import (
    ChildReport,
    Findings,
    Wanted,
    attempt,
    error_of,
    record,
    run_child,
)
from trtllm_hpc.runtime.process import captured

_HELP_S = 180
_OPTION = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*")
_PACKAGES = ("tensorrt_llm", "tensorrt", "torch", "transformers", "flashinfer-python", "mpi4py", "pydantic")
_LAUNCHER_NEEDS = ("openssl", "ps")
"""Programs that ``trtllm-llmapi-launch`` calls (1.3.0rc3)."""


def look_at_image(paths: RunPaths, wanted: Wanted) -> Findings:
    """Check the image."""
    installed = installed_versions(_PACKAGES)
    facts: dict[str, Any] = {"packages": installed}
    release = installed.get("tensorrt_llm")
    results: dict[str, Diagnostic | None] = {
        "image-release": None if wanted.release is None else planned_version(wanted.release, release),
        "image-numpy": None if wanted.has_tensorrt_llm else wheel_numpy(),
        "image-caches": _caches(),
        "image-launcher": _launcher(wanted),
    }
    facts["programs"], results["image-programs"], results["image-options"] = _programs(wanted)
    if wanted.has_tensorrt_llm:
        outcome = run_child(paths, "image", alone())
        version = outcome.steps.get("import")
        if isinstance(version, str):
            results["image-import"] = ok(f"TensorRT-LLM {version} can be imported in the image")
        else:
            why = error_of(version) or outcome.why("import tensorrt_llm")
            message = f"TensorRT-LLM cannot be imported in the image: {why}"
            results["image-import"] = fail(message, import_hint(why))
        results["image-parsers"] = _parsed(outcome)
    return results, facts


def _writable(folder: Path) -> str | None:
    """Return why no file can be written into a folder, which is made if missing; ``None``: it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"x" * 4096)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _caches() -> Diagnostic | None:
    """Check the folders of :mod:`runtime.caches`; those in a writable home may have no variable."""
    if TOP not in os.environ:
        return None
    wanted = [name for name in CACHES if name not in OF_HOME or name in os.environ]
    places = {name: os.environ.get(name) for name in wanted}
    reasons = {name: _writable(Path(place)) if place else "not set" for name, place in places.items()}
    broken = [f"{name} ({places[name] or '-'}: {why})" for name, why in reasons.items() if why]
    if not broken:
        return ok(f"all {len(places)} cache folders are writable in the container")
    hint = "name a folder that the nodes share and you may write to as container.cache_folder in the profile"
    return fail(f"caches that cannot be written in the container: {', '.join(broken)}", hint)


def _launcher(wanted: Wanted) -> Diagnostic | None:
    if wanted.launcher is None:
        return None
    missing = [name for name in (wanted.launcher, *_LAUNCHER_NEEDS) if shutil.which(name) is None]
    if missing:
        hint = "take an image of NVIDIA's with TensorRT-LLM 0.19 or later, or install them in yours"
        return fail(f"the image has no {' and no '.join(missing)}, which joining the ranks needs", hint)
    return ok(f"the image has {wanted.launcher} and what it calls")


def _programs(wanted: Wanted) -> tuple[dict[str, list[str]], Diagnostic | None, Diagnostic | None]:
    """Return each program's options from ``--help``, and the findings about programs and about options."""
    options: dict[str, list[str]] = {}
    broken, refused = [], []
    for words in wanted.programs:
        program = [word for word in words if not word.startswith("--")]
        name = " ".join(Path(word).name for word in program)
        if name not in options:
            options[name] = []
            try:
                options[name] = sorted(set(_OPTION.findall(_help(program))))
            except OSError as error:
                broken.append(f"{name} ({error.strerror or error})")
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        refused += [f"{name} {option}" for option in sorted(used - {*options[name]}) if options[name]]
    if not wanted.programs:
        return {}, None, None
    starts = ok(f"{', '.join(options)} start in the image")
    if broken:
        message = f"programs of the image that do not start: {'; '.join(broken)}"
        starts = fail(message, "set container.image to an image that has them")
    if refused:
        message = f"the image does not have these options of the plan: {', '.join(refused)}"
        hint = "state the image's release: container.tensorrt_llm_version in the profile"
        return options, starts, fail(message, hint)
    if broken:
        return options, starts, None
    return options, starts, ok("the image's programs have every option that the plan uses")


def _help(program: Sequence[str]) -> str:
    """Return a program's help; raise OSError with the reason if the program prints none."""
    if shutil.which(program[0]) is None:
        raise OSError("not on PATH")
    try:
        answer = captured([*program, "--help"], _HELP_S, alone())
    except subprocess.TimeoutExpired:
        raise OSError(f"--help did not end within {_HELP_S} s") from None
    if answer.returncode:
        lines = (answer.stderr or answer.stdout).strip().splitlines()
        last = f": {lines[-1]}" if lines else ""
        raise OSError(f"--help ended with exit code {answer.returncode}{last}")
    return answer.stdout


def read_image(wanted: Wanted) -> None:
    """In the child: import TensorRT-LLM, and have it parse the rendered command lines and files."""
    if error_of(attempt("import", lambda: __import__("tensorrt_llm").__version__)) is not None:
        return
    refusals: dict[str, str] = {}
    parsers = {
        f"trtllm-serve ({name})": partial(server_arguments, words) for name, words in wanted.serve.items()
    }
    if wanted.model_yaml is not None:
        arguments = importlib.import_module("yaml").safe_load(wanted.model_yaml)
        arguments.pop("triton_config")  # for Triton's model, not for the LLM API
        parsers["model.yaml"] = partial(llm_arguments, arguments)
    if wanted.front:
        parsers["front.yaml"] = partial(front_arguments, wanted.front)
    for name, parse in parsers.items():
        try:
            parse()
        except RefusedByUpstream as error:
            refusals[name] = str(error)
    record("parsed", {"names": list(parsers), "refused": refusals})


def import_hint(why: str) -> str:
    """Return advice for a failed import."""
    if "libcuda" in why or "libnvidia" in why:
        return "the container lacks the driver's libraries: does apptainer or pyxis pass the GPUs on?"
    if "No module named 'tensorrt_llm'" in why:
        return "name an image with TensorRT-LLM as container.image in the profile"
    if "Read-only" in why or "Permission" in why:
        return "something writes where the container may not: see the check image-caches"
    return "trtllm-hpc explain knows many such messages; --keep keeps this check's logs"


def _parsed(outcome: ChildReport) -> Diagnostic | None:
    result = outcome.steps.get("parsed")
    if result is None:
        return unknown(f"upstream's parsers were not reached ({outcome.why('import tensorrt_llm')})")
    if error := error_of(result):
        return unknown(f"this image's parsers cannot be called: {error}")
    if not result["names"]:
        return None
    if refused := result["refused"]:
        text = "; ".join(f"{name}: {' '.join(why.split())}" for name, why in refused.items())
        return fail(
            f"TensorRT-LLM in the image refuses what the plan renders: {text}",
            "change that key in the job file, or try --set engine.llm_api.KEY=VALUE with this command",
        )
    return ok(f"TensorRT-LLM's own parsers take {', '.join(result['names'])}")


# Upstream's parsers ---------------------------------------------------------------------------


_SERVE = "tensorrt_llm.commands.serve"
_ARGUMENTS = "tensorrt_llm.llmapi.llm_args"
_CLASSES = {"pytorch": "TorchLlmArgs", None: "TrtLlmArgs", "tensorrt": "TrtLlmArgs", "trt": "TrtLlmArgs"}
"""The class that checks the arguments of each ``--backend`` (``llmapi/llm.py``)."""
_TEXT_LIMIT = 2000


class RefusedByUpstream(Exception):
    """Upstream refuses a command line or a file; the message is upstream's own."""


def server_arguments(words: Sequence[str]) -> Any:
    """Return the checked LLM API arguments (``TorchLlmArgs``) of the words after ``trtllm-serve``.

    Upstream's own command reads the options and the YAML file; only the function that would start the server
    is replaced. Raises RefusedByUpstream, or ImportError if TensorRT-LLM cannot be imported.
    """
    with _refusals():
        return _checked(_passed_to("launch_server", words)["llm_args"])


def llm_arguments(arguments: Mapping[str, Any]) -> Any:
    """Return the checked arguments of ``tensorrt_llm.LLM(...)``; raises like :func:`server_arguments`."""
    with _refusals():
        module = importlib.import_module(_ARGUMENTS)
        # Like trtllm-serve, Triton's model first turns some sections into objects (all_models/llmapi).
        objects = getattr(module, "update_llm_args_with_extra_dict", lambda _, sections: sections)
        return _checked({"backend": "pytorch", **objects({}, deepcopy(dict(arguments)))})


def front_arguments(words: Sequence[str]) -> Any:
    """Return the configuration that ``trtllm-serve disaggregated`` reads from its command line and file.

    Upstream binds the front's port for a moment. The routers are created here, because upstream accepts any
    router name while it reads the file. Raises like :func:`server_arguments`.
    """
    with _refusals():
        front = _passed_to("OpenAIDisaggServer", words)["config"]
        module = importlib.import_module("tensorrt_llm.serve.router")
        for router in (front.ctx_router_config, front.gen_router_config):
            module.create_router(router, [])
        return front


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise
    except Exception as error:  # from click, pydantic or upstream itself
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        raise RefusedByUpstream(f"{type(error).__name__}: {text}"[:_TEXT_LIMIT]) from error


class _Reached(BaseException):
    """Upstream's command has read everything, and is about to start a server."""


def _passed_to(name: str, words: Sequence[str]) -> Mapping[str, Any]:
    """Run upstream's command until it calls its function or class ``name``; return the call's arguments."""
    serve: Any = importlib.import_module(_SERVE)
    called = getattr(serve, name)

    def record(*values: Any, **named: Any) -> None:
        raise _Reached(inspect.signature(called).bind(*values, **named).arguments)

    setattr(serve, name, record)
    try:
        serve.main(list(words), prog_name="trtllm-serve", standalone_mode=False)
    except _Reached as reached:
        arguments: Mapping[str, Any] = reached.args[0]
        return arguments
    finally:
        setattr(serve, name, called)
    raise ValueError("the command line starts no server")


def _checked(arguments: Mapping[str, Any]) -> Any:
    """Check arguments as ``LLM`` does before it loads anything (``llmapi/llm.py``, ``BaseLLM.__init__``)."""
    values = dict(arguments)
    kind = getattr(importlib.import_module(_ARGUMENTS), _CLASSES[values.get("backend")])
    if kind.__name__ == "TorchLlmArgs":
        values.pop("build_config", None)  # applies to engines only; launch_server() removes it as well
    else:
        values.pop("backend", None)
    for key in values:
        if key not in kind.model_fields and key != "backend":
            raise ValueError(f"LLM got invalid argument: {key}")
    return kind.from_kwargs(**values)
