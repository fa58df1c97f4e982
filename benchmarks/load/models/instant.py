"""A model that answers at once. Runs in Triton's Python stub."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self._answer = pb_utils.Tensor("OUTPUT", np.zeros((1, 1), dtype=np.int32))

    def execute(self, requests: list[Any]) -> list[Any]:
        return [pb_utils.InferenceResponse([self._answer]) for _ in requests]
