from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trtllm_hpc.errors import RequestFailed, StartFailed
from trtllm_hpc.reference import adapter_places
from trtllm_hpc.reference.adapter_places import AdapterPlaces
from trtllm_hpc.reference.executor import prepare
from trtllm_hpc.reference.generation import GenerationRequest, LoraRequest
from trtllm_hpc.reference.lora import Adapters
from trtllm_hpc.reference.scheduler import Adapter, Chunk, Decode, Step

from ..oracle import generate
from ..two_processes import answers_of_two
from .bench import DEVICE, Bench, new_bench, random_model
from .leader import ask, running

pytestmark = pytest.mark.model

RANK = 4
NUMBERS = {"q_proj": 1, "k_proj": 2, "v_proj": 3, "o_proj": 4, "gate_proj": 5, "down_proj": 6, "up_proj": 7}
PROMPTS = ((1, 40, 99, 7, 203), (1, 300, 8), (5, 6, 7, 8, 9, 10, 11, 12, 13))
NEW_TOKENS = 10

Array = np.ndarray[Any, Any]
Decoded = tuple[list[list[int]], torch.Tensor]
"""New tokens of each row, and all their logits."""


@dataclass
class Oracle:
    """The same adapter in peft and as a request to TensorRT-LLM has it."""

    model: Any
    weights: Array
    config: Array

    def request(self, task_id: int) -> LoraRequest:
        return LoraRequest(task_id, self.weights, self.config)

    def greedy(self, prompt: Sequence[int]) -> list[int]:
        return generate(self.model, prompt, NEW_TOKENS)[0]


def make_oracle(seed: int, modules: Sequence[str], *, rank: int = RANK, alpha: int = 8) -> Oracle:
    """A random adapter, strong enough to change the greedy answer."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(seed)
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(modules), init_lora_weights=False)
    model = peft.get_peft_model(random_model(), config).eval()
    rows, numbers = [], []
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in modules and hasattr(module, "lora_A"):
            inwards, outwards = module.lora_A["default"].weight.data, module.lora_B["default"].weight.data
            inwards.normal_(std=0.1)
            outwards.normal_(std=0.1)
            rows.append(torch.cat((inwards.flatten(), (outwards * alpha / rank).flatten())))
            numbers.append(
                (NUMBERS[name.rpartition(".")[2]], int(name.split(".layers.")[1].split(".")[0]), rank)
            )
    weights = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return Oracle(model, weights.cpu().numpy(), np.array(numbers, dtype=np.int32))


@pytest.fixture(scope="module")
def attention_only() -> Oracle:
    return make_oracle(1, ("q_proj", "v_proj"))


@pytest.fixture(scope="module")
def everywhere() -> Oracle:
    return make_oracle(2, tuple(NUMBERS), rank=3)


@pytest.fixture
def adapters() -> Adapters:
    return Adapters(RANK, slots=4, rank=0, ranks=1)


@pytest.fixture
def bench(adapters: Adapters) -> Bench:
    return bench_with(adapters)


def bench_with(adapters: Adapters) -> Bench:
    model = random_model()
    adapters.attach(model)
    prepare(model)
    return new_bench(model, adapters)


def greedy(task_id: int | None = None, prompt: tuple[int, ...] = PROMPTS[0]) -> GenerationRequest:
    return GenerationRequest(prompt, NEW_TOKENS, lora=None if task_id is None else LoraRequest(task_id))


def decode(bench: Bench, requests: Mapping[int, GenerationRequest]) -> Decoded:
    """Read all prompts in one pass, then decode them together, greedily."""
    admitted = tuple(bench.admission(slot, request) for slot, request in requests.items())
    chunks = tuple(Chunk(slot, 0, len(request.prompt)) for slot, request in requests.items())
    read = bench.executor.run(Step(admitted=admitted, chunks=chunks))
    assert read.logits is not None
    # On a GPU a prompt without an adapter is read by itself, and before the others.
    logits: torch.Tensor | None = read.logits[[read.slots.index(slot) for slot in requests]]
    answers: list[list[int]] = [[] for _ in requests]
    seen = []
    for index in range(NEW_TOKENS):
        assert logits is not None
        seen.append(logits.clone())
        for answer, token in zip(answers, logits.argmax(-1).tolist(), strict=True):
            answer.append(token)
        decodes = tuple(
            Decode(slot, answer[-1], len(request.prompt) + index)
            for (slot, request), answer in zip(requests.items(), answers, strict=True)
        )
        logits = bench.executor.run(Step(decodes=decodes)).logits
    return answers, torch.stack(seen)


def load(bench: Bench, **adapters: LoraRequest) -> None:
    bench.executor.run(Step(adapters=tuple(Adapter(int(place[1:]), one) for place, one in adapters.items())))


def plain_answer(prompt: Sequence[int]) -> list[int]:
    return generate(random_model(), prompt, NEW_TOKENS)[0]


def test_rows_of_one_batch_have_each_their_own_adapter(
    bench: Bench, attention_only: Oracle, everywhere: Oracle
) -> None:
    load(bench, p3=attention_only.request(70), p0=everywhere.request(1 << 60))
    answers, _ = decode(
        bench, {0: greedy(70, PROMPTS[0]), 1: greedy(None, PROMPTS[1]), 3: greedy(1 << 60, PROMPTS[2])}
    )
    assert answers == [
        attention_only.greedy(PROMPTS[0]),
        plain_answer(PROMPTS[1]),
        everywhere.greedy(PROMPTS[2]),
    ]
    assert answers[0] != plain_answer(PROMPTS[0])
    assert answers[2] != plain_answer(PROMPTS[2])


def test_logits_are_pefts(bench: Bench, everywhere: Oracle) -> None:
    load(bench, p5=everywhere.request(9))
    (answer,), logits = decode(bench, {2: greedy(9)})
    whole = everywhere.model(torch.tensor([[*PROMPTS[0], *answer]], device=DEVICE)).logits[0]
    expected = whole[len(PROMPTS[0]) - 1 : -1]
    torch.testing.assert_close(logits[:, 0], expected, atol=1e-4, rtol=0)


def test_a_row_without_an_adapter_is_the_same_bit_by_bit(bench: Bench, everywhere: Oracle) -> None:
    load(bench, p1=everywhere.request(1))
    _, without = decode(bench, {0: greedy(None, PROMPTS[0]), 1: greedy(None, PROMPTS[0])})
    _, beside = decode(bench, {0: greedy(None, PROMPTS[0]), 1: greedy(1, PROMPTS[0])})
    assert torch.equal(beside[:, 0], without[:, 0])
    assert not torch.allclose(beside[:, 1], without[:, 1], atol=0.1)


def test_beams_follow_their_adapter(bench: Bench, everywhere: Oracle) -> None:
    load(bench, p0=everywhere.request(4))
    request = replace(greedy(4), beam_width=3, length_penalty=0.0)
    result = bench.search(request)
    search = {"num_beams": 3, "num_return_sequences": 3, "early_stopping": True, "length_penalty": 0.0}
    expected = generate(everywhere.model, request.prompt, NEW_TOKENS, **search)
    assert [list(beam) for beam in result.tokens] == expected


def test_a_place_can_be_taken_by_another_adapter(
    bench: Bench, attention_only: Oracle, everywhere: Oracle
) -> None:
    load(bench, p0=everywhere.request(1))
    load(bench, p0=attention_only.request(2))
    (answer,), _ = decode(bench, {0: greedy(2)})
    assert answer == attention_only.greedy(PROMPTS[0])


def test_a_slot_forgets_the_adapter_of_the_request_before(bench: Bench, everywhere: Oracle) -> None:
    load(bench, p0=everywhere.request(1))
    decode(bench, {0: greedy(1), 1: greedy(1)})
    bench.executor.run(Step(released=(0, 1)))
    (answer, _), _ = decode(bench, {0: greedy(None), 1: greedy(1)})
    assert answer == plain_answer(PROMPTS[0])


@pytest.fixture
def overflowing() -> Bench:
    """With an adapter, number 1, of finite values that makes infinite ones."""
    adapters = Adapters(64, slots=4, rank=0, ranks=1)
    made = bench_with(adapters)
    config = np.array(
        [(NUMBERS[name], 0, 64) for name in ("gate_proj", "up_proj", "down_proj")], dtype=np.int32
    )
    weights = np.full((3, adapters.sizes[5, 0].values(64)), 65504, dtype=np.float32)
    load(made, p0=LoraRequest(1, weights, config))
    return made


def test_an_adapter_that_overflows_harms_no_other_row(overflowing: Bench) -> None:
    long = PROMPTS[2] * 3
    requests = {0: greedy(None, PROMPTS[1]), 1: greedy(None, long), 3: greedy(1, PROMPTS[0])}
    answers, logits = decode(overflowing, requests)
    assert not logits[:, 2].isfinite().all()
    assert answers[:2] == [plain_answer(PROMPTS[1]), plain_answer(long)]


def test_an_adapter_that_overflows_leaves_nothing_in_its_slot_and_blocks(overflowing: Bench) -> None:
    decode(overflowing, {0: greedy(1, PROMPTS[2] * 3)})
    overflowing.executor.run(Step(released=(0,)))
    overflowing.blocks = count(120, -1)
    (answer,), _ = decode(overflowing, {0: greedy(None)})
    assert answer == plain_answer(PROMPTS[0])


def test_attn_qkv_stands_for_three_layers(bench: Bench, adapters: Adapters) -> None:
    size = adapters.sizes[0, 1]
    assert size.outputs == sum(adapters.sizes[module, 1].outputs for module in (1, 2, 3))
    values = np.random.default_rng(0).normal(size=(1, size.values(2)), scale=0.2).astype(np.float32)
    inwards, outwards = values[:, : 2 * size.inputs], values[0, 2 * size.inputs :].reshape(-1, 2)
    thirds = np.split(outwards, 3)
    apart = np.stack([np.concatenate((inwards[0], third.ravel())) for third in thirds])
    together = LoraRequest(1, values, np.array([[0, 1, 2]], dtype=np.int32))
    separate = LoraRequest(2, apart, np.array([[1, 1, 2], [2, 1, 2], [3, 1, 2]], dtype=np.int32))
    load(bench, p0=together, p1=separate)
    _, logits = decode(bench, {0: greedy(1), 1: greedy(2)})
    torch.testing.assert_close(logits[:, 0], logits[:, 1], atol=1e-5, rtol=0)
    assert not torch.allclose(logits[0, 0], decode(bench, {2: greedy(None)})[1][0, 0], atol=0.01)


def test_the_engine_keeps_adapters_for_later_requests(engines: dict[int, Path], everywhere: Oracle) -> None:
    first = replace(greedy(), lora=everywhere.request(3))
    with running(engines[1]) as leader:
        together = ask(leader, first, greedy(), greedy(3, PROMPTS[1]))
        answers = [heard.wait().tokens for heard in together]
        later = ask(leader, greedy(3, PROMPTS[2]))[0].wait().tokens
        with pytest.raises(RequestFailed, match="not loaded"):
            ask(leader, greedy(4))[0].wait()
    assert answers == [everywhere.greedy(PROMPTS[0]), plain_answer(PROMPTS[0]), everywhere.greedy(PROMPTS[1])]
    assert later == everywhere.greedy(PROMPTS[2])


def test_two_ranks_answer_as_one_does(engines: dict[int, Path], tmp_path: Path, everywhere: Oracle) -> None:
    """Beams, adapters, and beams with adapters, all in flight at once."""
    wide = GenerationRequest(PROMPTS[2], NEW_TOKENS, beam_width=4, length_penalty=1.0)
    rounds = [
        [replace(greedy(), lora=everywhere.request(3)), wide, greedy(None, PROMPTS[1])],
        [replace(wide, lora=LoraRequest(3)), greedy(3, PROMPTS[1])],
    ]
    found = answers_of_two(engines[2], tmp_path, rounds)
    with running(engines[1]) as leader:
        expected = [heard.wait().parts[-1] for together in rounds for heard in ask(leader, *together)]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["tokens"] == [list(beam) for beam in theirs.tokens]
        for beam, numbers in zip(ours["log_probs"], theirs.log_probs, strict=True):
            assert beam == pytest.approx(numbers, abs=1e-4)


def test_a_model_without_known_layers_is_refused() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=64))
    with pytest.raises(StartFailed, match="models of type gpt2"):
        Adapters(8, slots=1, rank=0, ranks=1).attach(model)


SIZES = {
    (1, 0): adapter_places.Size(16, 16),
    (0, 0): adapter_places.Size(16, 48),
    (2, 0): adapter_places.Size(16, 16),
    (3, 0): adapter_places.Size(16, 16),
}


def small(task_id: int, *rows: tuple[int, int, int], values: int = 200) -> LoraRequest:
    config = np.array(rows or [(1, 0, 2)], dtype=np.int32)
    return LoraRequest(task_id, np.ones((len(config), values), dtype=np.float16), config)


def with_lora(adapter: LoraRequest) -> GenerationRequest:
    return GenerationRequest((1,), 1, lora=adapter)


@pytest.fixture
def places() -> AdapterPlaces:
    return AdapterPlaces(SIZES)


def test_the_first_request_brings_the_weights_and_the_next_only_the_number(places: AdapterPlaces) -> None:
    (first,) = places.hold([with_lora(small(7))])
    (second,) = places.hold([with_lora(LoraRequest(7))])
    assert first.lora == second.lora == LoraRequest(7)
    (adapter,) = places.take_loads()
    assert adapter.lora.task_id == 7
    assert adapter.lora.weights is not None
    assert places.take_loads() == ()


def test_an_unknown_number_without_weights_is_refused(places: AdapterPlaces) -> None:
    with pytest.raises(RequestFailed, match=r"adapter 7 .* not loaded.*lora_weights and lora_config"):
        places.hold([with_lora(LoraRequest(7))])


def test_an_engine_without_lora_refuses_adapters() -> None:
    with pytest.raises(RequestFailed, match=r"engine\.max_lora_rank"):
        AdapterPlaces({}).hold([with_lora(small(7))])


def test_the_adapter_asked_for_longest_ago_gives_way(places: AdapterPlaces) -> None:
    for task_id in range(adapter_places.PLACES):
        places.drop(places.hold([with_lora(small(task_id))]))
    places.drop(places.hold([with_lora(LoraRequest(0))]))
    places.hold([with_lora(small(100))])
    assert places.take_loads()[-1].place == 1
    places.hold([with_lora(LoraRequest(0))])
    with pytest.raises(RequestFailed, match="adapter 1 "):
        places.hold([with_lora(LoraRequest(1))])


def test_an_adapter_in_use_never_gives_way(places: AdapterPlaces) -> None:
    held = [places.hold([with_lora(small(task_id))]) for task_id in range(adapter_places.PLACES)]
    with pytest.raises(RequestFailed, match="Try again later"):
        places.hold([with_lora(small(100))])
    places.drop(held[5])
    places.hold([with_lora(small(100))])
    assert places.take_loads()[-1].place == 5


def test_requests_that_belong_together_are_held_all_or_none(places: AdapterPlaces) -> None:
    with pytest.raises(RequestFailed, match="adapter 9 "):
        places.hold([with_lora(small(0)), GenerationRequest((1,), 1), with_lora(LoraRequest(9))])
    for task_id in range(1, adapter_places.PLACES + 1):
        places.hold([with_lora(small(task_id))])
    with pytest.raises(RequestFailed, match="adapter 0 "):
        places.hold([with_lora(LoraRequest(0))])


def _not_finite() -> LoraRequest:
    adapter = small(1)
    assert adapter.weights is not None
    adapter.weights[0, 63] = np.nan
    return adapter


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: small(1, (8, 0, 2)), r"module 8 of layer 0; .* layers 0 to 0 and modules 0 \(attn_qkv\)"),
        (lambda: small(1, (4, 0, 2)), r"module 4 \(attn_dense\)"),
        (lambda: small(1, (1, 1, 2)), "of layer 1"),
        (lambda: small(1, (1, 0, 2), (1, 0, 2)), r"1 \(attn_q\) of layer 0 twice"),
        (lambda: small(1, (0, 0, 2), (3, 0, 2)), r"3 \(attn_v\) of layer 0 twice"),
        (lambda: small(1, values=63), "holds 63 values .* 2 x 16 inwards and 16 x 2 outwards"),
        (_not_finite, r"NaN .* 1 \(attn_q\)"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(
    places: AdapterPlaces, make: Callable[[], LoraRequest], sentence: str
) -> None:
    with pytest.raises(RequestFailed, match=sentence):
        places.hold([with_lora(make())])
    assert places.take_loads() == ()


def test_padding_behind_the_values_may_be_anything(places: AdapterPlaces) -> None:
    adapter = small(1)
    assert adapter.weights is not None
    adapter.weights[0, 64:] = np.nan
    places.hold([with_lora(adapter)])
