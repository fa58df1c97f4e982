"""Import upstream's Python files without its libraries: stubs replace modules that cannot be imported.

TensorRT-LLM's package cannot be imported without GPU libraries. The files that read command lines and
configuration need little of the package, so these files run unchanged, and everything else is a stub.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, FunctionType, MappingProxyType, ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

PACKAGE = "tensorrt_llm"
_REAL = (
    "_utils builder commands commands.serve disaggregated_params executor.utils inputs.multimodal llmapi "
    "logger lora_helper mapping models.modeling_utils plugin.plugin quantization.mode sampling_params serve "
    "tools.importlib_utils version"
)
"""Modules of upstream that are imported with all modules below. A package above is a stub with a folder."""
LIBRARIES = ("click", "fastapi", "openai", "pydantic", "strenum", "torch", "transformers", "yaml")
"""Modules that must be installed; the package of yaml is pyyaml."""
GPUS = 8
"""Number of GPUs that upstream's files find on this machine."""


class _Stub:
    """Replaces any attribute of a stub module: a value, function, decorator, class or type."""

    __members__: Mapping[str, Any] = MappingProxyType({})
    """Empty, for code that uses the stub as an enumeration and compares members."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Stub()

    def __call__(self, *values: Any, **named: Any) -> Any:
        is_decorator = len(values) == 1 and not named and isinstance(values[0], (FunctionType, type))
        return values[0] if is_decorator else _Stub()

    def __getitem__(self, key: Any) -> Any:
        return self

    def __or__(self, other: Any) -> Any:
        return Any

    __ror__ = __or__

    def __dir__(self) -> list[str]:
        return []

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()  # a class that inherits from a stub has no base class

    def __instancecheck__(self, value: object) -> bool:
        return False

    def __subclasscheck__(self, kind: type) -> bool:
        return False

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {"type": "any"}


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        stub = _Stub()
        setattr(self, name, stub)
        return stub


class _Stubs(MetaPathFinder, Loader):
    """Imports upstream's modules, and makes stubs of the modules that they import and this machine lacks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.stubbed: set[str] = set()
        self.absent: set[str] = set()
        """Installed packages that cannot be imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if name == PACKAGE or name.startswith(f"{PACKAGE}."):
            inner = name[len(PACKAGE) + 1 :]
            if any(inner == real or inner.startswith(f"{real}.") for real in _REAL.split()):
                real_spec = PathFinder.find_spec(name, path)
                if real_spec is not None:
                    return real_spec
            spec = ModuleSpec(name, self, is_package=True)
            spec.submodule_search_locations = [str(self._folder.joinpath(*inner.split(".")))]
            return spec
        if name.partition(".")[0] not in self.absent:
            others = [finder for finder in sys.meta_path if finder is not self]
            if not _asked_by_upstream() or any(finder.find_spec(name, path) for finder in others):
                return None
        self.stubbed.add(name)
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _asked_by_upstream() -> bool:
    """Return whether a file of upstream contains the current import statement."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("importlib"):
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith(PACKAGE)


class CannotImport(Exception):
    """Upstream's files or required libraries are missing or incompatible."""


def version_of(folder: Path) -> str:
    """Return the version of TensorRT-LLM in a folder.

    Raises:
        CannotImport: the folder does not contain TensorRT-LLM.
    """
    file = folder / PACKAGE / "version.py"
    match = re.search(r"""__version__ = ["'](.+)["']""", file.read_text()) if file.is_file() else None
    if match is None:
        raise CannotImport(f"{file} does not state a version: name a folder that contains tensorrt_llm/")
    return match[1]


@contextmanager
def importable(folder: Path) -> Iterator[set[str]]:
    """Make upstream's package in ``folder`` importable within a ``with`` block.

    Yields:
        the names of the modules that upstream imports and this machine lacks.

    Raises:
        CannotImport: a file or a library is missing.
    """
    if missing := [name.replace("yaml", "pyyaml") for name in LIBRARIES if find_spec(name) is None]:
        raise CannotImport(f"upstream's parsers need more packages: pip install {' '.join(missing)}")
    finder, before = _Stubs(folder / PACKAGE), set(sys.modules)
    sys.meta_path.insert(0, finder)
    try:
        with warnings.catch_warnings(), ExitStack() as patches:
            warnings.simplefilter("ignore")
            _import(finder, before)
            _adapt(patches)
            yield finder.stubbed
    finally:
        sys.meta_path.remove(finder)
        _forget(before, PACKAGE)


def _import(finder: _Stubs, before: set[str]) -> None:
    try:
        import_module(f"{PACKAGE}.llmapi")  # first, because other modules import each other through llmapi
    except RuntimeError:  # mpi4py raises it if the machine has no MPI
        if "mpi4py.MPI" in sys.modules:
            raise
        finder.absent.add("mpi4py")
        _forget(before, PACKAGE, "mpi4py")
        return _import(finder, before)
    for name in ("commands.serve", "llmapi.llm_args", "llmapi.disagg_utils"):
        if isinstance(import_module(f"{PACKAGE}.{name}"), _Module):
            raise CannotImport(f"{PACKAGE}/{name.replace('.', '/')}.py is missing in the folder")


def _forget(before: set[str], *packages: str) -> None:
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in packages or isinstance(sys.modules[name], _Module):
            del sys.modules[name]


def _adapt(patches: ExitStack) -> None:
    """Let upstream find GPUs, and use the path of a tokenizer instead of loading the tokenizer."""
    arguments = import_module(f"{PACKAGE}.llmapi.llm_args")
    values = {
        "torch.cuda.device_count": lambda: GPUS,
        "torch.cuda.get_device_properties": lambda *_: SimpleNamespace(major=9, minor=0),
    }
    for name, value in values.items() if "torch" in sys.modules else ():
        patches.enter_context(mock.patch(name, value))
    if hasattr(arguments, "tokenizer_factory"):
        patches.enter_context(mock.patch.object(arguments, "tokenizer_factory", lambda path, **_: path))
    logger = import_module(f"{PACKAGE}.logger").logger
    logger.set_level("error")
    patches.enter_context(mock.patch.object(logger, "set_level"))
