"""The shape of a model: its ``config.json`` as matrices, and how ranks share them.

A matrix is cut as TensorRT-LLM cuts it (``ColumnLinear``, ``RowLinear``, ``Attention``, ``MOE``). Sizes
and names are those of transformers' classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Matrix:
    """Equal matrices of one layer (or of none), with their biases."""

    outputs: int
    inputs: int
    cut: Literal["outputs", "inputs", "whole"] = "whole"
    """What the tensor parallel ranks share among them."""
    unit: int = 1
    """Outputs are cut in whole units, a unit at least to each rank: KV heads are repeated where ranks
    outnumber them. With a unit of 1 this is how TensorRT-LLM pads the vocabulary (``pad_vocab_size``)."""
    bias: bool = False
    count: int = 1
    expert: bool = False
    """Whether the ``count`` matrices are experts, which expert parallel ranks share among them."""
    quantized: bool = True
    """Whether quantization touches it."""
    bytes_each: int | None = None
    """Where the type is fixed: TensorRT-LLM keeps routers in float32."""

    @property
    def parameters(self) -> int:
        """All of them, on all ranks together."""
        return self.count * self.outputs * (self.inputs + self.bias)


@dataclass(frozen=True)
class Stack:
    """Equal layers, and the tables that feed them."""

    layers: int
    matrices: tuple[Matrix, ...]
    """Of one layer."""
    vectors: int
    """Elements of one layer's norms; every rank has them whole."""
    kv_heads: int
    head_size: int
    hidden: int
    wide: int
    """Inner size of the MLP: with ``hidden`` it decides how wide a step's activations are."""
    tables: tuple[Matrix, ...]
    """Embeddings; the first pipeline stage has them."""
    last_vectors: int
    """Elements of the last norm; the last pipeline stage has it."""

    @property
    def parameters(self) -> int:
        """All of them, tables included."""
        layer = sum(matrix.parameters for matrix in self.matrices) + self.vectors
        return self.layers * layer + sum(table.parameters for table in self.tables) + self.last_vectors


@dataclass(frozen=True)
class ModelShape:
    """A whole model."""

    family: str
    """``model_type`` of the configuration."""
    decoder: Stack
    head: Matrix
    """The matrix from hidden states to the vocabulary."""
    tied: bool
    """Whether the head is the token embedding once more."""
    encoder: Stack | None = None
    dtype: str | None = None
    """Type of the stored weights."""
    longest: int | None = None
    """Tokens that the model's positions allow."""

    @property
    def vocabulary(self) -> int:
        """Tokens."""
        return self.head.outputs

    @property
    def parameters(self) -> int:
        """As transformers counts them: what is tied counts once."""
        head = self.head.outputs * self.head.bias if self.tied else self.head.parameters
        total = self.decoder.parameters + head
        if self.encoder is not None:
            total += self.encoder.parameters - self.encoder.tables[0].parameters
        return total


class UnknownModel(ValueError):
    """Why the planner cannot count this model's parameters, in one sentence."""


class WrongSize(UnknownModel):
    """A size in ``config.json`` is impossible."""


def read_shape(config: Config, *, rough: bool = False) -> ModelShape:
    """The shape of the model that a ``config.json`` describes.

    ``rough`` is for any family, and right for KV cache and activations only. Raises UnknownModel if it is of
    another family, or a field is missing.
    """
    family = config.get("model_type")
    reader = _rough if rough else READERS.get(str(family))
    if reader is None:
        known = ", ".join(sorted(READERS))
        raise UnknownModel(f"no sum for models of type {family!r} (there is one for {known})")
    try:
        return reader(str(family), config)
    except KeyError as missing:
        raise UnknownModel(f"its config.json has no {missing}") from None
    except (TypeError, ZeroDivisionError):
        raise UnknownModel("its config.json holds sizes that are no positive numbers") from None


def _count(config: Config, *names: str, default: int | None = None) -> int:
    """The first of the keys that is there and not null, as a positive number."""
    for name in names:
        if config.get(name) is not None:
            value = config[name]
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise WrongSize(f"{name} in config.json is {value!r}, and must be a whole number above 0")
            return value
    if default is None:
        raise KeyError(names[0])
    return default


def _attention(
    hidden: int, heads: int, kv_heads: int, size: int, *, bias_in: bool = False, bias_out: bool = False
) -> tuple[Matrix, ...]:
    return (
        Matrix(heads * size, hidden, "outputs", bias=bias_in),
        Matrix(kv_heads * size, hidden, "outputs", unit=size, bias=bias_in, count=2),
        Matrix(hidden, heads * size, "inputs", bias=bias_out),
    )


def _mlp(hidden: int, wide: int, *, gated: bool, bias: bool = False) -> tuple[Matrix, ...]:
    return (
        Matrix(wide, hidden, "outputs", bias=bias, count=2 if gated else 1),
        Matrix(hidden, wide, "inputs", bias=bias),
    )


def _experts(hidden: int, wide: int, experts: int) -> tuple[Matrix, ...]:
    """As TensorRT-LLM's ``MOE``: the router is whole and in float32 on every rank."""
    return (
        Matrix(experts, hidden, quantized=False, bytes_each=4),
        Matrix(2 * wide, hidden, "outputs", count=experts, expert=True),
        Matrix(hidden, wide, "inputs", count=experts, expert=True),
    )


def _llama_like(family: str, config: Config) -> ModelShape:
    hidden, wide = _count(config, "hidden_size"), _count(config, "intermediate_size")
    heads = _count(config, "num_attention_heads")
    kv_heads = _count(config, "num_key_value_heads", default=heads)
    size = _count(config, "head_dim", default=256 if family == "gemma" else hidden // heads)
    bias = bool(config.get("attention_bias", False))
    bias_in = bias or family == "qwen2"
    experts = _count(config, "num_local_experts") if family == "mixtral" else 0
    mlp = _mlp(hidden, wide, gated=True, bias=bool(config.get("mlp_bias", False)))
    if experts:
        mlp = _experts(hidden, wide, experts)
    norms = {"gemma2": 4}.get(family, 2) * hidden + (2 * size if family == "qwen3" else 0)
    vocabulary = _count(config, "vocab_size")
    attention = _attention(hidden, heads, kv_heads, size, bias_in=bias_in, bias_out=bias)
    stack = Stack(
        layers=_count(config, "num_hidden_layers"),
        matrices=(*attention, *mlp),
        vectors=norms,
        kv_heads=kv_heads,
        head_size=size,
        hidden=hidden,
        wide=wide * (config.get("num_experts_per_tok", 2) if experts else 1),
        tables=(_table(vocabulary, hidden),),
        last_vectors=hidden,
    )
    longest = config.get("max_position_embeddings")
    return _model(family, config, stack, tied=family in ("gemma", "gemma2"), longest=longest)


def _table(rows: int, hidden: int) -> Matrix:
    return Matrix(rows, hidden, quantized=False)


def _model(
    family: str,
    config: Config,
    decoder: Stack,
    *,
    tied: bool,
    bias: bool = False,
    longest: int | None = None,
    encoder: Stack | None = None,
) -> ModelShape:
    """The model with its head, whose ``bias`` the family decides; ``tied`` where the file does not say."""
    vocabulary = decoder.tables[0].outputs
    head = Matrix(vocabulary, decoder.hidden, "outputs", bias=bias, quantized=False)
    is_tied = bool(config.get("tie_word_embeddings", tied))
    dtype = config.get("torch_dtype", config.get("dtype"))
    dtype = str(dtype).removeprefix("torch.") if dtype else None
    return ModelShape(family, decoder, head, is_tied, encoder, dtype, longest)


def _gpt_like(family: str, config: Config) -> ModelShape:
    """Layers with a plain MLP: GPT-2, GPT-NeoX, GPT-J, BLOOM."""
    hidden = _count(config, "n_embd", "hidden_size")
    heads = _count(config, "n_head", "num_attention_heads")
    wide = _count(config, "n_inner", "intermediate_size", default=4 * hidden)
    vocabulary = _count(config, "vocab_size")
    has_bias = family != "gptj"
    attention = _attention(hidden, heads, heads, hidden // heads, bias_in=has_bias, bias_out=has_bias)
    tables = [_table(vocabulary, hidden)]
    if family == "gpt2":
        tables.append(_table(_count(config, "n_positions"), hidden))
    if family == "bloom":
        tables.append(_table(2, hidden))  # the norm after the embedding
    stack = Stack(
        layers=_count(config, "n_layer", "num_hidden_layers"),
        matrices=(*attention, *_mlp(hidden, wide, gated=False, bias=True)),
        vectors=(1 if family == "gptj" else 2) * 2 * hidden,
        kv_heads=heads,
        head_size=hidden // heads,
        hidden=hidden,
        wide=wide,
        tables=tuple(tables),
        last_vectors=2 * hidden,
    )
    longest = config.get("n_positions", config.get("max_position_embeddings"))
    tied = family in ("gpt2", "bloom")
    return _model(family, config, stack, tied=tied, bias=family == "gptj", longest=longest)


def _falcon(family: str, config: Config) -> ModelShape:
    hidden = _count(config, "hidden_size", "n_embed")
    heads = _count(config, "num_attention_heads", "n_head")
    is_new = bool(config.get("new_decoder_architecture", False))
    one = bool(config.get("multi_query", True))
    kv_heads = _count(config, "num_kv_heads", "n_head_kv", default=heads) if is_new else (1 if one else heads)
    bias = bool(config.get("bias", False))
    wide = _count(config, "ffn_hidden_size", default=4 * hidden)
    vocabulary, size = _count(config, "vocab_size"), hidden // heads
    norms = (
        config.get("num_ln_in_parallel_attn") or 2 if is_new else 2 - bool(config.get("parallel_attn", True))
    )
    stack = Stack(
        layers=_count(config, "num_hidden_layers", "n_layer"),
        matrices=(
            *_attention(hidden, heads, kv_heads, size, bias_in=bias, bias_out=bias),
            *_mlp(hidden, wide, gated=False, bias=bias),
        ),
        vectors=norms * 2 * hidden,
        kv_heads=kv_heads,
        head_size=size,
        hidden=hidden,
        wide=wide,
        tables=(_table(vocabulary, hidden),),
        last_vectors=2 * hidden,
    )
    return _model(family, config, stack, tied=True, longest=config.get("max_position_embeddings", 2048))


def _t5(family: str, config: Config) -> ModelShape:
    hidden, heads = _count(config, "d_model"), _count(config, "num_heads")
    size, wide = _count(config, "d_kv"), _count(config, "d_ff")
    gated = str(config.get("feed_forward_proj", "relu")).startswith("gated")
    vocabulary = _count(config, "vocab_size")
    attention = _attention(hidden, heads, heads, size)
    mlp = _mlp(hidden, wide, gated=gated)
    # Distances between tokens, by bucket and head, are learnt in each stack's first layer.
    tables = (
        _table(vocabulary, hidden),
        _table(_count(config, "relative_attention_num_buckets", default=32), heads),
    )
    layers = _count(config, "num_layers")

    def stack(depth: int, matrices: tuple[Matrix, ...], norms: int) -> Stack:
        return Stack(depth, matrices, norms * hidden, heads, size, hidden, wide, tables, hidden)

    depth = _count(config, "num_decoder_layers", default=layers)
    decoder, encoder = stack(depth, (*attention, *attention, *mlp), 3), stack(layers, (*attention, *mlp), 2)
    return _model(family, config, decoder, tied=True, encoder=encoder)


def _rough(family: str, config: Config) -> ModelShape:
    """Attention of any kind. With MLA every rank keeps one vector for each token and layer."""
    hidden, heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
    size = _count(config, "head_dim", default=hidden // heads)
    kv_heads = _count(config, "num_key_value_heads", default=heads)
    if config.get("kv_lora_rank"):
        kv_heads, size = 1, (_count(config, "kv_lora_rank") + _count(config, "qk_rope_head_dim")) // 2
    wide = _count(config, "intermediate_size", "moe_intermediate_size", default=4 * hidden)
    tables, queries = (_table(_count(config, "vocab_size"), hidden),), Matrix(heads * size, hidden, "outputs")
    layers = _count(config, "num_hidden_layers")
    stack = Stack(layers, (queries,), 0, kv_heads, size, hidden, wide, tables, hidden)
    return _model(family, config, stack, tied=False, longest=config.get("max_position_embeddings"))


_LLAMA_LIKE = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "phi3")

READERS: Mapping[str, Callable[[str, Config], ModelShape]] = {
    **dict.fromkeys(_LLAMA_LIKE, _llama_like),
    **dict.fromkeys(("gpt2", "gpt_neox", "gptj", "bloom"), _gpt_like),
    "falcon": _falcon,
    **dict.fromkeys(("t5", "mt5"), _t5),
}
"""How to read each ``model_type``."""
