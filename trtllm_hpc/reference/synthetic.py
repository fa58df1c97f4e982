"""Random Llamas and their tokenizer, so that nothing must be downloaded.

The models are untrained and generate nonsense, but always the same for the same seed, and with the same code
as a real Llama. They share a tokenizer of ``VOCAB_SIZE`` tokens, trained on a short text; the further tokens
of the larger models are made-up words, so that a text shows how many tokens it has.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from trtllm_hpc.config.synthetic_models import SHAPES, VOCAB_SIZE
from trtllm_hpc.paths import write_json

SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")
"""In the order of their ids, as in Llama 2, where 2 ends a text."""

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)

_SPELLING = ("bdfghklmnprstvwz", "aeiou", "bdfghklmnprstvwz", "aeiou", "bdfghklmnprstvwz")
"""The letters of a made-up word, by place. All words are equally long, so none begins with another."""


def make_model(name: str = "tiny-llama", *, seed: int, dtype: str, max_seq_len: int) -> Any:
    """The Llama of that name with random weights.

    They are drawn in float32 and then rounded, so that the models of all types differ only by rounding.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    begin, end = SPECIAL_TOKENS.index("<s>"), SPECIAL_TOKENS.index("</s>")
    config = LlamaConfig(
        **SHAPES[name],
        max_position_embeddings=max_seq_len,
        bos_token_id=begin,
        eos_token_id=end,
        pad_token_id=end,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).to(getattr(torch, dtype))


def make_tokenizer(folder: Path, vocab_size: int = VOCAB_SIZE) -> None:
    """Write a byte-level BPE tokenizer of ``VOCAB_SIZE`` tokens or more; any UTF-8 text can be encoded.

    Every token but the special ones has a text, and the text of random tokens has as many tokens again, or
    nearly.
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
    # Every line counts: another text makes another tokenizer.
    corpus = Path(__file__).with_name("corpus.txt").read_text(encoding="utf-8")
    tokenizer.train_from_iterator(corpus.splitlines(), trainer)
    if vocab_size > VOCAB_SIZE:
        _add_words(tokenizer, vocab_size - VOCAB_SIZE)
    unknown, begin, end = SPECIAL_TOKENS
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, SPECIAL_TOKENS.index(begin))]
    )
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"unk_token": unknown, "bos_token": begin, "eos_token": end, "pad_token": end}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names, "chat_template": CHAT_TEMPLATE}
    write_json(folder / "tokenizer_config.json", config)


def _add_words(tokenizer: Any, count: int) -> None:
    """Add made-up words, each with the space before it, as tokens that need no merges.

    They are split off before anything else, so that what follows a word cannot change it.
    """
    from tokenizers import Regex, models, pre_tokenizers

    trained = json.loads(tokenizer.to_str())["model"]
    space = tokenizer.pre_tokenizer.pre_tokenize_str(" ")[0][0]
    spelled = (space + "".join(letters) for letters in itertools.product(*_SPELLING))
    free = [word for word in spelled if word not in trained["vocab"]]
    # Spread over the alphabet.
    words = {free[place * len(free) // count]: VOCAB_SIZE + place for place in range(count)}
    merges = [tuple(pair) for pair in trained["merges"]]
    tokenizer.model = models.BPE(vocab=trained["vocab"] | words, merges=merges, ignore_merges=True)
    word = Regex(" " + "".join(f"[{letters}]" for letters in _SPELLING))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(word, "isolated"), tokenizer.pre_tokenizer]
    )
