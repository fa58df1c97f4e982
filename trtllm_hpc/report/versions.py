"""Tables of TensorRT-LLM's releases and of their programs' options."""

from __future__ import annotations

from trtllm_hpc.report.formatting import NONE
from trtllm_hpc.report.tables import Table, print_table
from trtllm_hpc.tensorrt_llm.releases.programs import Program, programs_of
from trtllm_hpc.tensorrt_llm.releases.release import Release

_MANY = 6
"""Most choices of an option that are listed; the rest is counted."""


def print_release(release: Release) -> None:
    """Print facts and programs of a release."""
    facts = {
        "containers": ", ".join(f"{tag}-trtllm-python-py3" for tag in release.tags) or "none is known",
        "TensorRT": release.tensorrt,
        "Python": release.python,
        "CUDA": release.cuda,
        "backends": ", ".join(release.backends),
        "examples": release.paths.examples,
        "templates": release.paths.all_models,
        "source": release.source,
        "note": release.note,
    }
    print(f"TensorRT-LLM {release.version}")
    for name, value in facts.items():
        if value is not None:
            print(f"  {name}: {value}")
    print()
    table = Table("program", "options", "list", right=("options",))
    for program in programs_of(release.version):
        table.add_row(program.name, str(len(program.options)), program.status)
    print_table(table)


def print_program(program: Program) -> None:
    """Print all options of a program."""
    suffix = f" for {program.family}" if program.family else ""
    print(f"{program.name}{suffix} of TensorRT-LLM {program.release}")
    print(f"  list: {program.status}")
    print(f"  source: {program.source}")
    print()
    table = Table("option", "takes", "default", "remarks")
    for option in program.options.values():
        names = ", ".join((option.name, *option.aliases))
        if option.form == "flag":
            takes, default = "nothing", "off"
        else:
            more = len(option.choices) - _MANY
            takes = " | ".join(option.choices[:_MANY]) if option.choices else "a value"
            takes += f" | … ({more} more)" if more > 0 else ""
            takes += " …" if option.form == "list" else ""
            default = NONE if option.default is None or option.default == "" else str(option.default)
        remarks = (
            "Required." if option.required else None,
            option.ignored,
            "Other releases have another default." if option.default_varies else None,
            option.note,
        )
        table.add_row(names, takes, default, " ".join(filter(None, remarks)))
    print_table(table)
    for part in program.subcommands.values():
        print()
        print_program(part)
