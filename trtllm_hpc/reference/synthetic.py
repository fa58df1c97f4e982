"""A random Llama and its tokenizer, which need no download.

The model is untrained and generates meaningless text, which is always the same for the same seed, and uses
the code of a real Llama. Its tokenizer of ``VOCAB_SIZE`` tokens is trained on a short text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtllm_hpc.config.synthetic_models import SHAPE, VOCAB_SIZE
from trtllm_hpc.paths import write_json

SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")
"""Special tokens in the order of their ids, as in Llama 2, where token 2 ends a text."""

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def make_model(*, seed: int, dtype: str, max_seq_len: int) -> Any:
    """Return the Llama with random weights.

    The weights are drawn in float32 and then rounded, so that models of all types differ only by rounding.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    begin, end = SPECIAL_TOKENS.index("<s>"), SPECIAL_TOKENS.index("</s>")
    config = LlamaConfig(
        **SHAPE, max_position_embeddings=max_seq_len, bos_token_id=begin, eos_token_id=end, pad_token_id=end
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).to(getattr(torch, dtype))


def make_tokenizer(folder: Path) -> None:
    """Write a byte-level BPE tokenizer of ``VOCAB_SIZE`` tokens into a new folder; it encodes any UTF-8 text.

    Every token except the special ones has a text, and the text of N random tokens has N tokens again, or
    nearly so.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # A change of any line of this text changes the tokenizer.
    corpus = Path(__file__).with_name("corpus.txt").read_text(encoding="utf-8")
    tokenizer.train_from_iterator(corpus.splitlines(), trainer)
    unknown, begin, end = SPECIAL_TOKENS
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, SPECIAL_TOKENS.index(begin))]
    )
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"unk_token": unknown, "bos_token": begin, "eos_token": end, "pad_token": end}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names, "chat_template": CHAT_TEMPLATE}
    write_json(folder / "tokenizer_config.json", config)
