"""Upstream's own parsers, applied to what a plan renders: no model is loaded, no server starts.

Needs a Python that can import ``tensorrt_llm``, so it runs in the image (``doctor --on-nodes``) or beside a
copy of upstream's Python files (``python -m benchmarks.upstream``). Sources: TensorRT-LLM 1.3.0rc3,
``tensorrt_llm/commands/serve.py``, ``llmapi/llm_args.py``, ``llmapi/disagg_utils.py``.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, get_args

_SERVE = "tensorrt_llm.commands.serve"
_ARGUMENTS = "tensorrt_llm.llmapi.llm_args"
_CLASSES = {"pytorch": "TorchLlmArgs", None: "TrtLlmArgs", "tensorrt": "TrtLlmArgs", "trt": "TrtLlmArgs"}
"""The class that checks the arguments of each ``--backend`` (``llmapi/llm.py``)."""
_TEXT_LIMIT = 2000


class Refused(Exception):
    """Upstream does not take a command line or a file; the message is upstream's own."""


def server_arguments(words: Sequence[str]) -> Any:
    """Return the checked LLM API arguments (``TorchLlmArgs``) of a command line after ``trtllm-serve``.

    Upstream's own command reads its options and its YAML file; only the function that would start the server
    is replaced. Raises Refused, or ImportError if TensorRT-LLM cannot be imported.
    """
    with _refusals():
        return _checked(_passed_to("launch_server", words)["llm_args"])


def llm_arguments(arguments: Mapping[str, Any]) -> Any:
    """Return the checked arguments of ``tensorrt_llm.LLM(...)``; raises as :func:`server_arguments`."""
    with _refusals():
        module = importlib.import_module(_ARGUMENTS)
        # Triton's model makes objects of some sections first, as trtllm-serve does (all_models/llmapi).
        objects = getattr(module, "update_llm_args_with_extra_dict", lambda _, given: given)
        return _checked({"backend": "pytorch", **objects({}, deepcopy(dict(arguments)))})


def front_arguments(words: Sequence[str]) -> Any:
    """Return what a command line of ``trtllm-serve disaggregated``, with its file, leads to.

    The front's port is bound for a moment, and its routers are made: the reading of the file takes any name.
    Arguments and errors are those of :func:`server_arguments`.
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
    except Exception as error:  # of click, pydantic, upstream itself
        raise Refused(_text(error)) from error


class _Reached(BaseException):
    """Upstream's command has read everything, and is about to start a server."""


def _passed_to(name: str, words: Sequence[str]) -> Mapping[str, Any]:
    """Run upstream's command until it calls its function or class ``name``; return what it passes on."""
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
    given = dict(arguments)
    kind = getattr(importlib.import_module(_ARGUMENTS), _CLASSES[given.get("backend")])
    if kind.__name__ == "TorchLlmArgs":
        given.pop("build_config", None)  # of engines; launch_server() removes it as well
    else:
        given.pop("backend", None)
    for key in given:
        if key not in kind.model_fields and key != "backend":
            raise ValueError(f"LLM got invalid argument: {key}")
    return kind.from_kwargs(**given)


def _text(error: Exception) -> str:
    said = error.format_message() if hasattr(error, "format_message") else str(error)
    return f"{type(error).__name__}: {said}"[:_TEXT_LIMIT]


def server_options() -> dict[str, list[dict[str, Any]]]:
    """Return each sub-command's options of ``trtllm-serve``, as in ``releases/data``; raises ImportError."""
    group = importlib.import_module(_SERVE).main
    return {name: list(_options(command)) for name, command in group.commands.items()}


def _options(command: Any) -> Iterator[dict[str, Any]]:
    for option in command.params:
        if option.param_type_name != "option":
            continue
        name, kind = max(option.opts, key=len), option.type
        default = option.default if isinstance(option.default, (str, int, float, bool)) else None
        yield {
            "name": name,
            "aliases": [other for other in (*option.opts, *option.secondary_opts) if other != name],
            "form": "flag" if option.is_flag else "value",
            "choices": [*map(str, getattr(kind, "choices", ())), *getattr(kind, "aliases", ())],
            "required": option.required,
            "type": {"integer": "int", "float": "float"}.get(kind.name),
            "default": default,
        }


def llm_api_keys() -> dict[str, list[str]]:
    """Return the keys of every section of the LLM API's configuration on PyTorch; ``""`` is the top.

    A section that has variants (``speculative_config``) has the keys of all. Raises ImportError.
    """
    sections: dict[str, set[str]] = {}
    _collect("", [importlib.import_module(_ARGUMENTS).TorchLlmArgs], sections)
    return {name: sorted(keys) for name, keys in sorted(sections.items())}


def _collect(path: str, models: Sequence[Any], sections: dict[str, set[str]]) -> None:
    keys = sections.setdefault(path, set())
    for model in models:
        keys |= {name for name in vars(model) if name in ("decoding_type", "algorithm")}
        for name, field in model.model_fields.items():
            keys |= {name, *_aliases(field)}
            inner = f"{path}.{name}" if path else name
            if found := [each for each in _models(field.annotation) if each not in models]:
                _collect(inner, found, sections)


def _aliases(field: Any) -> Iterator[str]:
    for alias in (field.alias, field.validation_alias):
        choices: list[Any] = getattr(alias, "choices", [alias])
        yield from (choice for choice in choices if isinstance(choice, str))


def _models(annotation: Any) -> list[Any]:
    """Return the pydantic models in an annotation, with the variants that derive from them."""
    if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
        variants: list[Any] = annotation.__subclasses__()
        return [annotation, *(each for one in variants for each in _models(one))]
    return [each for part in get_args(annotation) for each in _models(part)]
