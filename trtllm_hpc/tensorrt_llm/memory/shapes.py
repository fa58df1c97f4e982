"""The shape of a model, read from its ``config.json``, and how a backend uses a rank's memory.

Matrices are cut as TensorRT-LLM cuts them (``ColumnLinear``, ``RowLinear``, ``Attention``, ``MOE``). Sizes
and names are those of transformers' classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]

_MOE = ("mixtral", "qwen3_moe")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi3", *_MOE)
"""Each ``model_type`` whose weights can be summed up; others need the size of their checkpoint."""


@dataclass(frozen=True)
class MemoryModel:
    """How a backend uses a rank's memory."""

    logit_copies: int = 7
    """Times that runtime and decoder hold a row of logits in float32 for each request."""
    activations: int = 1
    """Memory for activations, as a multiple of what TensorRT's one arena takes."""
    fills_memory: bool = True
    """Whether the KV cache takes the memory that is left, and not only what a full batch can use."""
    pipelines: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Sizes of ``engine.pipeline_parallel`` that can be suggested."""


@dataclass(frozen=True)
class Parallel:
    """How the ranks share the model."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1


@dataclass(frozen=True)
class Elements:
    """Numbers of one layer, on one rank."""

    matrices: float
    """What quantization touches."""
    vectors: float
    """Norms and biases."""
    router: int
    """TensorRT-LLM keeps it whole and in float32 on every rank."""


@dataclass(frozen=True)
class ModelShape:
    """Equal decoder layers between an embedding and a head."""

    family: str
    """``model_type`` of the configuration."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    wide: int
    """Inner size of the MLP, or of one expert."""
    vocabulary: int
    """Tokens."""
    tied: bool
    """Whether the head is the token embedding once more."""
    dtype: str | None
    """Type of the stored weights."""
    longest: int | None
    """Tokens that the model's positions allow."""
    experts: int = 0
    """Of each layer; 0: a dense model."""
    active: int = 1
    """Experts that compute one token."""
    norms: int = 0
    """Elements of one layer's norms."""
    input_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False

    def layer(self, tensor: int = 1, expert: int = 1) -> Elements:
        """Return one layer of a rank, of ``tensor`` ranks that share it and ``expert`` that share experts.

        KV heads are cut whole: they are repeated where ranks outnumber them.
        """
        queries = -(-self.heads * self.head_size // tensor)
        keys = 2 * -(-self.kv_heads // tensor) * self.head_size
        matrices = self.hidden * (queries + keys + self.heads * self.head_size / tensor)
        split = max(tensor // expert, 1)  # moe_tp * moe_ep is the tensor parallel size
        ups = 2 * -(-self.wide // split)
        matrices += self.hidden * (ups + self.wide / split) * -(-(self.experts or 1) // expert)
        vectors = self.norms + (queries + keys) * self.input_bias + self.hidden * self.output_bias
        vectors += (ups + self.hidden) * self.mlp_bias
        return Elements(matrices, vectors, self.experts * self.hidden)

    @property
    def table(self) -> int:
        """Parameters of the embedding, and of the head."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """As transformers counts them: what is tied counts once."""
        layer = self.layer()
        each = round(layer.matrices + layer.vectors) + layer.router
        return self.layers * each + self.hidden + self.table * (1 if self.tied else 2)


class UnknownModel(ValueError):
    """Why the planner cannot count this model's parameters, in one sentence."""


class WrongSize(UnknownModel):
    """A size in ``config.json`` is impossible."""


def read_shape(config: Config, *, rough: bool = False) -> ModelShape:
    """Return the shape of the model that a ``config.json`` describes.

    ``rough`` is for any family, and right for KV cache and activations only. Raises UnknownModel if it is of
    another family, or a field is missing.
    """
    family = str(config.get("model_type"))
    if not rough and family not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise UnknownModel(
            f"no sum for models of type {config.get('model_type')!r} (there is one for {known})"
        )
    try:
        return _rough(family, config) if rough else _llama_like(family, config)
    except KeyError as missing:
        raise UnknownModel(f"its config.json has no {missing}") from None
    except (TypeError, ZeroDivisionError):
        raise UnknownModel("its config.json holds sizes that are no positive numbers") from None


def _count(config: Config, *names: str, default: int | None = None) -> int:
    """Return the first of the keys that is there and not null, as a positive number."""
    for name in names:
        if config.get(name) is not None:
            value = config[name]
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise WrongSize(f"{name} in config.json is {value!r}, and must be a whole number above 0")
            return value
    if default is None:
        raise KeyError(names[0])
    return default


def _llama_like(family: str, config: Config) -> ModelShape:
    hidden, heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
    size = _count(config, "head_dim", default=256 if family == "gemma" else hidden // heads)
    bias, is_moe = bool(config.get("attention_bias", False)), family in _MOE
    dtype = config.get("torch_dtype", config.get("dtype"))
    return ModelShape(
        family=family,
        layers=_count(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_count(config, "num_key_value_heads", default=heads),
        head_size=size,
        wide=_count(config, *(["moe_intermediate_size"] if is_moe else []), "intermediate_size"),
        vocabulary=_count(config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", family in ("gemma", "gemma2"))),
        dtype=str(dtype).removeprefix("torch.") if dtype else None,
        longest=config.get("max_position_embeddings"),
        experts=_count(config, "num_local_experts", "num_experts") if is_moe else 0,
        active=config.get("num_experts_per_tok", 2) if is_moe else 1,
        norms=(4 if family == "gemma2" else 2) * hidden + 2 * size * family.startswith("qwen3"),
        input_bias=bias or family == "qwen2",
        output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
    )


def _rough(family: str, config: Config) -> ModelShape:
    """Attention of any kind. With MLA every rank keeps one vector for each token and layer."""
    hidden, heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
    size = _count(config, "head_dim", default=hidden // heads)
    kv_heads = _count(config, "num_key_value_heads", default=heads)
    if config.get("kv_lora_rank"):
        kv_heads, size = 1, (_count(config, "kv_lora_rank") + _count(config, "qk_rope_head_dim")) // 2
    return ModelShape(
        family=family,
        layers=_count(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        wide=_count(config, "intermediate_size", "moe_intermediate_size", default=4 * hidden),
        vocabulary=_count(config, "vocab_size"),
        tied=False,
        dtype=None,
        longest=config.get("max_position_embeddings"),
    )
