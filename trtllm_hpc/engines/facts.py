"""What a job file and a cluster profile mean for an engine: model family, programs, command lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines.command_lines.compile import PARTS, CommandLines, Part, compile_options
from trtllm_hpc.engines.command_lines.toolchain import NoToolchain, Toolchain, find_toolchain
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.tensorrt_llm.releases.families import Family, find_family
from trtllm_hpc.tensorrt_llm.releases.release import Release, releases


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
        """Whether the job builds its engine, and names no finished one."""
        return self.job.engine.directory is None

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether there are two engines, an encoder's and a decoder's."""
        if self.job.engine.encoder_decoder:
            return True
        return self.builds_engine and self.family is not None and self.family.encoder_decoder

    @cached_property
    def _found_toolchain(self) -> tuple[Toolchain | None, NoToolchain | None]:
        if self.release is None or self.family is None or not self.builds_engine:
            return None, None
        try:
            return find_toolchain(self.job, self.release, self.family, self.model_config), None
        except NoToolchain as error:
            return None, error

    @property
    def toolchain(self) -> Toolchain | None:
        """The programs that build the engine; ``None`` where none is built, or none can be."""
        return self._found_toolchain[0]

    @property
    def no_toolchain(self) -> NoToolchain | None:
        """Why the release cannot build the engine."""
        return self._found_toolchain[1]

    @cached_property
    def first_able(self) -> Release | None:
        """The first release after the job's whose programs can build this engine; ``None`` if none can."""
        if self.release is None or self.family is None or not self.builds_engine:
            return None
        # What trtllm-build makes batches in flight without being told.
        engine = self.job.engine.model_copy(update={"inflight_batching": None})
        job = self.job.model_copy(update={"engine": engine})
        known = releases()
        for later in known[known.index(self.release) + 1 :]:
            try:
                toolchain = find_toolchain(job, later, self.family, self.model_config)
            except NoToolchain:
                continue
            if not any(lines.problems for lines in self._compiled(job, toolchain).values()):
                return later
        return None

    @cached_property
    def command_lines(self) -> Mapping[Part | None, CommandLines]:
        """The options of the toolchain's programs: for encoder and decoder, or under ``None`` for one engine.

        Empty where there is no toolchain.
        """
        return {} if self.toolchain is None else self._compiled(self.job, self.toolchain)

    def _compiled(self, job: JobFile, toolchain: Toolchain) -> Mapping[Part | None, CommandLines]:
        parts = PARTS if self.is_encoder_decoder else (None,)
        return {part: compile_options(job, toolchain, self.model_config, part) for part in parts}


def generation_of(job: JobFile) -> JobFile | None:
    """Return the job of the engine that is built besides, for the generation of a disaggregated Triton."""
    phases = job.serve.disaggregated
    if phases is None or not phases.generation.differs:
        return None
    return job.with_phase(phases.generation)
