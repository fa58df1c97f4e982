from tests.cli.typed import types as types
from tests.scheduler.conftest import fake_slurm as fake_slurm
