"""What a job file and a cluster profile mean for an engine: model family, programs, command lines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trtllm_hpc.engines.command_lines import CommandLines
from trtllm_hpc.engines.toolchain import NoToolchain, Toolchain, find_toolchain
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.tensorrt_llm.releases.families import Family, find_family


@dataclass(frozen=True)
class EngineFacts(JobFacts):
    """The facts of a job with an engine of TensorRT-LLM."""

    @cached_property
    def family(self) -> Family | None:
        """The family whose programs convert the model; ``None`` if unknown."""
        return find_family(self.job.model.family, self.model_config)

    @property
    def examples_folder(self) -> str | None:
        """The folder of upstream's ``examples`` in the container; ``None`` where it is not known."""
        return self.cluster.container.examples or (self.release.paths.examples if self.release else None)

    @property
    def builds_engine(self) -> bool:
        """Whether the job's keys build its engine: it names no finished one, and no commands of its own."""
        return self.job.engine.directory is None and not self.job.build.commands

    @cached_property
    def _found_toolchain(self) -> Toolchain | NoToolchain | None:
        if self.release is None or self.family is None or not self.builds_engine:
            return None
        try:
            return find_toolchain(self.job, self.release, self.family, self.model_config)
        except NoToolchain as error:
            return error

    @property
    def toolchain(self) -> Toolchain | None:
        """The programs that build the engine; ``None`` where none is built, or none can be."""
        return self._found_toolchain if isinstance(self._found_toolchain, Toolchain) else None

    @property
    def no_toolchain(self) -> NoToolchain | None:
        """Why the release cannot build the engine."""
        return self._found_toolchain if isinstance(self._found_toolchain, NoToolchain) else None

    @cached_property
    def command_lines(self) -> CommandLines | None:
        """The options of the toolchain's programs; ``None`` where there is no toolchain."""
        return None if self.toolchain is None else CommandLines(self.job, self.toolchain, self.model_config)
