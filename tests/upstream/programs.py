"""The stand-ins themselves: ``programs.py RELEASE FAMILY CALLS PROGRAM WORDS...``.

Like upstream's (``tensorrt_llm/_utils.py``, 1.3.0rc3) they initialise MPI.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from trtllm_hpc.tensorrt_llm.releases.programs import Program, ProgramOption
from trtllm_hpc.tensorrt_llm.releases.release import release_of_version


def main() -> None:
    """Parse the words as the release does, and write what the program would."""
    version, family, calls, program, *words = sys.argv[1:]
    release = release_of_version(version)
    command = release.program(program, family) if release is not None else None
    if command is None:
        sys.exit(f"{program}: TensorRT-LLM {version} has no such program for {family}")
    with Path(calls).open("a", encoding="utf-8") as file:
        file.write(json.dumps([program, *words]) + "\n")
    # Each imports tensorrt_llm, and that MPI, before it reads its words.
    import mpi4py.MPI  # noqa: F401

    options = vars(_parser(command).parse_args(words))
    write = {"trtllm-build": _build, "build.py": _build_py, "hf_lora_convert.py": _lora}
    write.get(program, _checkpoint)(version, options)


def _parser(command: Program) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(command.name, allow_abbrev=False)
    for option in command.options.values():
        parser.add_argument(option.name, *option.aliases, **_arguments(option))
    return parser


def _arguments(option: ProgramOption) -> dict[str, Any]:
    if option.form == "flag":
        return {"action": "store_true"}
    arguments: dict[str, Any] = {"nargs": "+"} if option.form == "list" else {}
    if option.choices and option.form != "list":
        arguments["choices"] = option.choices
    if option.required:
        arguments["required"] = True
    return arguments


def _checkpoint(version: str, options: dict[str, Any]) -> None:
    """What ``convert_checkpoint.py`` and ``quantize.py`` leave: a configuration and a file a rank."""
    sizes = {name: int(options.get(f"{name}_size") or 1) for name in ("tp", "pp", "cp")}
    world = sizes["tp"] * sizes["pp"] * sizes["cp"]
    config = Path(options["model_dir"]) / "config.json"
    source = json.loads(config.read_text(encoding="utf-8"))
    output = _output(options)
    mapping = {"world_size": world, **{f"{name}_size": size for name, size in sizes.items()}}
    record = {
        "architecture": source["architectures"][0],
        "dtype": options.get("dtype") or "float16",
        "mapping": mapping,
        "vocab_size": source.get("vocab_size"),
    }
    (output / "config.json").write_text(json.dumps(record), encoding="utf-8")
    for rank in range(world):
        (output / f"rank{rank}.safetensors").write_bytes(_bytes(record, rank))


def _build(version: str, options: dict[str, Any]) -> None:
    """What ``trtllm-build`` leaves: the checkpoint's configuration, the build's, an engine a rank."""
    checkpoint = json.loads((Path(options["checkpoint_dir"]) / "config.json").read_text(encoding="utf-8"))
    _engine(version, options, checkpoint)


def _build_py(version: str, options: dict[str, Any]) -> None:
    world = int(options.get("world_size") or 1)
    mapping = {"world_size": world, "tp_size": int(options.get("tp_size") or 1)}
    _engine(version, options, {"dtype": options.get("dtype"), "mapping": mapping})


def _engine(version: str, options: dict[str, Any], checkpoint: dict[str, Any]) -> None:
    output = _output(options)
    if "gpus_per_node" in options:
        # commands/build.py writes it into the layout, by default 8 whatever the node has.
        checkpoint["mapping"]["gpus_per_node"] = int(options["gpus_per_node"] or 8)
    plugins = {name: value for name, value in options.items() if name.endswith("_plugin") and value}
    plugins["use_paged_context_fmha"] = options.get("use_paged_context_fmha") == "enable"
    build: dict[str, Any] = {
        name: int(value) for name, value in options.items() if name.startswith("max_") and value
    }
    build.update(gather_context_logits=False, gather_generation_logits=False, plugin_config=plugins)
    record = {"version": version, "pretrained_config": checkpoint, "build_config": build}
    (output / "config.json").write_text(json.dumps(record), encoding="utf-8")
    for rank in range(checkpoint["mapping"]["world_size"]):
        (output / f"rank{rank}.engine").write_bytes(_bytes(record, rank))


def _lora(version: str, options: dict[str, Any]) -> None:
    folder = Path(options["out_file"] if "out_file" in options else options["out_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("model.lora_weights.npy", "model.lora_config.npy"):
        (folder / name).write_bytes(name.encode())


def _output(options: dict[str, Any]) -> Path:
    output = Path(options["output_dir"])
    output.mkdir(parents=True, exist_ok=True)
    return output


def _bytes(record: dict[str, Any], rank: int) -> bytes:
    """The same for the same options, as far as one may look."""
    return hashlib.sha256(json.dumps([record, rank], sort_keys=True).encode()).digest() * 1000


if __name__ == "__main__":
    main()
