"""Each command of ``runtime.pyz`` names a function that takes what the command line gives it."""

from __future__ import annotations

import argparse
import inspect
from importlib import import_module

import pytest

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.__main__ import _WITHOUT_RUN, COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_the_function_of_a_command_takes_its_options(name: str) -> None:
    target, options = COMMANDS[name]
    parser = argparse.ArgumentParser()
    given = {parser.add_argument(flag, **how).dest: None for flag, how in options}
    module, _, function = target.rpartition(".")
    signature = inspect.signature(getattr(import_module(f"trtllm_hpc.runtime.{module}"), function))
    paths = () if name in _WITHOUT_RUN else (RunPaths("run"),)
    signature.bind(*paths, **given)
