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

_CORPUS = """
The scheduler holds a queue of jobs and gives each of them a set of nodes for a bounded time. A job
that asks
for two nodes waits until two nodes are free at once, and then its first script runs on the first of
them.
Machine learning is a part of computer science in which programs improve with the examples that they
are shown.
A language model reads a text as a row of tokens and says which token is likely to come next; taking
the
likeliest one again and again is called greedy decoding. When a model is too large for one device,
its matrices
are cut into slices: every rank multiplies with its own slice, and the ranks add up their results
after each layer.
What is the weather like today? The morning was cold and clear, but towards evening clouds came over
the hills.
Where does the river begin? It begins under the glacier, passes three villages, and reaches the sea
after ten days.
Who wrote the letter, and why was it never answered? How many questions can one person ask before
lunch?
The quick brown fox jumps over the lazy dog. Numbers: 0 1 2 3 4 5 6 7 8 9 10 12 16 24 32 48 64 100
128 256 512.
Der Rechner steht im Keller und rechnet die ganze Nacht; am Morgen liegen die Ergebnisse für alle
bereit.
Le modèle répond à chaque question, même quand il n'a rien à dire; où est passé l'été?
"""
"""Text for training the tokenizer's merges. Every line counts: another text makes another tokenizer."""

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
    tokenizer.train_from_iterator(_CORPUS.splitlines(), trainer)
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
