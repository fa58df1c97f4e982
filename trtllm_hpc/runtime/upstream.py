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
from typing import Any

_SERVE = "tensorrt_llm.commands.serve"
_ARGUMENTS = "tensorrt_llm.llmapi.llm_args"
_CLASSES = {"pytorch": "TorchLlmArgs", None: "TrtLlmArgs", "tensorrt": "TrtLlmArgs", "trt": "TrtLlmArgs"}
"""The class that checks the arguments of each ``--backend`` (``llmapi/llm.py``)."""
_TEXT_LIMIT = 2000


class RefusedByUpstream(Exception):
    """Upstream does not take a command line or a file; the message is upstream's own."""


def server_arguments(words: Sequence[str]) -> Any:
    """Return the checked LLM API arguments (``TorchLlmArgs``) of a command line after ``trtllm-serve``.

    Upstream's own command reads its options and its YAML file; only the function that would start the server
    is replaced. Raises RefusedByUpstream, or ImportError if TensorRT-LLM cannot be imported.
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
        said = error.format_message() if hasattr(error, "format_message") else str(error)
        raise RefusedByUpstream(f"{type(error).__name__}: {said}"[:_TEXT_LIMIT]) from error


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
