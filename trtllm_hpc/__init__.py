"""From one job file to a measured TensorRT-LLM server on a Slurm cluster.

::

    import trtllm_hpc

    with trtllm_hpc.submit("tiny-llama", cluster="local") as run:
        run.wait("ready")
        print(run.client().generate("What is machine learning?", max_tokens=64).text)

Importing this package reads no file, starts no process and imports nothing
outside the standard library; each name in ``__all__`` is imported when it is
first used. The modules ``paths``, ``errors`` and ``runtime`` travel into the job
as a zipapp.

Every error is a :class:`TrtllmHpcError` with a sentence, an ``exit_code`` that
shows what failed, and, if there is something to do, a ``hint``.
"""

import sys
from types import ModuleType

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "Address",
    "Answer",
    "AsyncClient",
    "Client",
    "DoctorReport",
    "JobFile",
    "Measurement",
    "Plan",
    "Run",
    "RunState",
    "RunStatus",
    "Sweep",
    "SweepStatus",
    "TrtllmHpcError",
    "bench",
    "bench_url",
    "doctor",
    "load_job",
    "plan",
    "plan_sweep",
    "read_adapter",
    "render",
    "submit",
    "sweep",
]

TYPE_CHECKING = False  # not imported from typing, to save an import; type checkers know the name
if TYPE_CHECKING:
    from trtllm_hpc.api.jobs import doctor, load_job, plan, render, submit
    from trtllm_hpc.api.measurement import Measurement, bench, bench_url
    from trtllm_hpc.api.run import Run
    from trtllm_hpc.api.sweep import Sweep, plan_sweep, sweep
    from trtllm_hpc.client.async_client import AsyncClient
    from trtllm_hpc.client.connect import Address
    from trtllm_hpc.client.lora import Adapter, read_adapter
    from trtllm_hpc.client.request import Answer
    from trtllm_hpc.client.sync_client import Client
    from trtllm_hpc.config.job import JobFile
    from trtllm_hpc.errors import TrtllmHpcError
    from trtllm_hpc.plan.model import Plan
    from trtllm_hpc.runs.status import RunState, RunStatus
    from trtllm_hpc.sweeps.status import SweepStatus
    from trtllm_hpc.validation.checks import DoctorReport

_NAMES = {
    "api.jobs": ("doctor", "load_job", "plan", "render", "submit"),
    "api.measurement": ("Measurement", "bench", "bench_url"),
    "api.run": ("Run",),
    "api.sweep": ("Sweep", "plan_sweep", "sweep"),
    "client.async_client": ("AsyncClient",),
    "client.connect": ("Address",),
    "client.lora": ("Adapter", "read_adapter"),
    "client.request": ("Answer",),
    "client.sync_client": ("Client",),
    "config.job": ("JobFile",),
    "errors": ("TrtllmHpcError",),
    "plan.model": ("Plan",),
    "runs.status": ("RunState", "RunStatus"),
    "sweeps.status": ("SweepStatus",),
    "validation.checks": ("DoctorReport",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
"""The module of each public name."""


class _Package(ModuleType):
    """The package, whose functions ``bench``, ``plan`` and ``render`` hide their namesake subpackages.

    When Python imports a subpackage, it makes it an attribute of the package, which would replace the
    function. ``from trtllm_hpc.plan.model import Plan`` does not use the attribute.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise accept any name

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used (PEP 562)."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
