from __future__ import annotations

from tests.scheduler.conftest import fake_slurm as fake_slurm
