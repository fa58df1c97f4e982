"""The model's own tokenizer, which counts on the client's side, and its ordinary token ids."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.bench.workload.request import TextEncoder, Vocabulary, settings_error
from trtllm_hpc.client.tokenizer_file import read_tokenizer
from trtllm_hpc.config.benchmark import Workload
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.tensorrt_llm.job_facts import read_model_config


class LocalTokenizer:
    """The library ``tokenizers`` with a folder's ``tokenizer.json``; raises RequestFailed.

    With ``special`` it adds the tokens that begin and end a text, as upstream's ``preprocessing`` does unless
    ``add_special_tokens`` is off.
    """

    def __init__(self, folder: Path, *, special: bool = True) -> None:
        self.name = str(folder)
        self._special = special
        self._tokenizer = read_tokenizer(folder)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text."""
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=self._special)
        return [encoding.ids for encoding in encodings]

    def vocabulary(self, size: int | None = None) -> Vocabulary:
        """Return its tokens without the special ones, and without ids from the model's own ``size`` on."""
        special = {i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        ids = sorted(set(self._tokenizer.get_vocab(with_added_tokens=True).values()) - special)
        return Vocabulary([token for token in ids if size is None or token < size], size or ids[-1] + 1)


def find_tokenizer(
    workload: Workload, folders: Sequence[Path] = (), *, special: bool = True
) -> tuple[TextEncoder | None, Vocabulary | None]:
    """Find the tokenizer that counts, and the ordinary token ids of the model.

    ``folders`` are those of the model and of its engine; the first tokenizer and the first ``config.json``
    are taken. Without a tokenizer the ids are all that ``config.json`` allows. Raises ConfigError if the
    settings name a folder without a readable tokenizer.
    """
    sizes = []
    for folder in folders:
        config = read_model_config(str(folder)) or {}
        model = config.get("pretrained_config", config)
        size = model.get("vocab_size") if isinstance(model, dict) else None
        sizes += [size] if isinstance(size, int) and size > 0 else []
    size = next(iter(sizes), None)
    if workload.tokenizer is not None:
        try:
            local = LocalTokenizer(Path(workload.tokenizer), special=special)
        except RequestFailed as error:
            value = workload.tokenizer
            raise settings_error("tokenizer", error.message, code="bad-tokenizer", value=value) from None
        return local, local.vocabulary(size)
    for folder in folders:
        # The reference backend's engines have it in a subfolder.
        for candidate in (folder, folder / "tokenizer"):
            with suppress(RequestFailed):
                local = LocalTokenizer(candidate, special=special)
                return local, local.vocabulary(size)
    return None, None if size is None else Vocabulary(range(size), size)
