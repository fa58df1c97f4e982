"""What every step of a build is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import RenderError
from trtllm_hpc.plan.layout import Layout
from trtllm_hpc.runtime.engine_cache.recipe import Argument
from trtllm_hpc.tensorrt_llm.command_lines.compile import spell
from trtllm_hpc.tensorrt_llm.command_lines.encoder_decoder import Part
from trtllm_hpc.tensorrt_llm.command_lines.option_request import Role
from trtllm_hpc.tensorrt_llm.command_lines.raw_options import raw_words
from trtllm_hpc.tensorrt_llm.command_lines.toolchain import Program, Route
from trtllm_hpc.tensorrt_llm.releases import Release


@dataclass(frozen=True)
class Making:
    """A job file and a profile on their way to steps."""

    job: JobFile
    cluster: ClusterProfile
    release: Release
    layout: Layout
    """Of the serve stage."""
    route: Route
    model_config: Mapping[str, Any] | None

    def program(self, role: Role) -> Program:
        """The program of the route that does this."""
        found = self.route.program(role)
        assert found is not None, f"the route has no {role}"
        return found

    def run(self, role: Role) -> tuple[Argument, ...]:
        """How the program is started."""
        program = self.program(role)
        return (program.command.name,) if program.script is None else self.script(program.script)

    def script(self, file: str) -> tuple[Argument, ...]:
        """How a program of upstream's examples is started.

        Raises:
            RenderError: where they lie is not known.
        """
        examples = self.cluster.container.examples or self.release.paths.examples
        if examples is None:
            raise RenderError(
                f"Where upstream's examples of TensorRT-LLM {self.release.version} are is not known.",
                hint="set container.examples in the cluster profile",
            )
        return (self.cluster.container.python, f"{examples}/{file}")

    def words(self, role: Role, part: Part | None = None) -> tuple[Argument, ...]:
        """What the job file says to the program, its further words last."""
        return (*spell(self.job, self.route, self.model_config, part).words(role), *raw_words(self.job, role))

    def folders(self, *commands: tuple[Argument, ...]) -> tuple[str, ...]:
        """Folders and files besides the model's that these commands read: their content makes the output."""
        engine = self.job.engine
        named = (
            engine.quantization.checkpoint,
            engine.quantization.calibration_dataset,
            engine.speculative.model if engine.speculative is not None else None,
            *engine.lora.directories,
            *engine.lora.adapters,
        )
        words = {word for command in commands for word in command if isinstance(word, str)}
        return tuple(dict.fromkeys(name for name in named if name is not None and name in words))

    def identity(self) -> dict[str, Any]:
        """What makes this release's outputs differ from those of others."""
        return {"tensorrt_llm": self.release.version}

    def layout_identity(self) -> dict[str, Any]:
        """The parallel layout of the engine, besides."""
        engine = self.job.engine
        layout = {
            "world_size": engine.world_size,
            "tensor_parallel": engine.tensor_parallel,
            "pipeline_parallel": engine.pipeline_parallel,
            "context_parallel": engine.context_parallel,
        }
        return {**self.identity(), "tensorrt": self.release.tensorrt, "layout": layout}
