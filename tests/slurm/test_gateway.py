"""OpenAI's protocol in front of a real model on a real cluster."""

from __future__ import annotations

from functools import partial

import pytest

from tests.sharing import build_engine, made_once
from tests.slurm.conftest import Person
from tests.slurm.openai_clients import assert_answered_as_by_ensemble
from tests.slurm.test_backbone import serving

pytestmark = [pytest.mark.slurm, pytest.mark.thorough]


def test_a_model_over_two_nodes_answers_openais_clients_as_ensemble_does(person: Person) -> None:
    """The same with an engine without a model is shown by a server that is kept running."""
    engine = made_once("engine with a model", partial(build_engine, ranks=2, synthetic="tiny-llama"))
    streams = {"decoupled": True}
    run, endpoint = serving(person, engine, "openai", companion={"enabled": False}, repository=streams)
    assert_answered_as_by_ensemble(endpoint)
    person.cancel(run)
