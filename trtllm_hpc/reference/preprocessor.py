"""Text requests to token requests: what the models ``preprocessing`` and ``tensorrt_llm_bls`` have in common.

Tensor names are those of ``all_models/inflight_batcher_llm/preprocessing/config.pbtxt``
of NVIDIA's tensorrtllm_backend v0.16.0.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.engine_config import EngineFolder, EngineInfo, plain_path
from trtllm_hpc.reference.generation import NO_END
from trtllm_hpc.reference.inputs import Array
from trtllm_hpc.reference.text import (
    TextTokenizer,
    embedding_bias,
    padded_prompts,
    switch,
    text_of,
    word_lists,
)


class Preprocessor:
    """Tokenises prompts and words, and fills in the tokenizer's own end and pad ids.

    Raises StartFailed if there is no tokenizer or no engine, or a parameter of the model is wrong.
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.tokenizer = TextTokenizer(plain_path(parameters["tokenizer_dir"]))
        self._special = switch(parameters, "add_special_tokens", default=True)
        engine = EngineFolder(plain_path(parameters["gpt_model_path"]))
        self._max_input_len = EngineInfo.read(engine).max_input_len

    def process(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of ``preprocessing`` for its inputs, both by name.

        Raises:
            RequestFailed: an input is missing, a text is not UTF-8 or too long, or weights do not fit words.
        """
        for name, inner in (("text_input", "QUERY"), ("max_tokens", "REQUEST_OUTPUT_LEN")):
            if inner not in inputs:
                # Triton counts the inputs that must be there, and takes another one for it.
                raise RequestFailed(f"{name} ({inner}) is missing.")
        tokenizer = self.tokenizer
        prompts = [self._prompt(text) for text in inputs["QUERY"].reshape(-1)]
        count = len(prompts)
        end_id = NO_END if tokenizer.end_id is None else tokenizer.end_id
        # As in transformers and upstream's tokenising models: the end token is used if there is no pad token.
        pad_id = next((token for token in (tokenizer.pad_id, tokenizer.end_id) if token is not None), 0)
        pad_ids = inputs.get("PAD_ID", _column(pad_id, count))
        return {
            "INPUT_ID": padded_prompts(prompts, pad_id),
            "REQUEST_INPUT_LEN": np.array([[len(tokens)] for tokens in prompts], dtype=np.int32),
            "REQUEST_OUTPUT_LEN": inputs["REQUEST_OUTPUT_LEN"],
            # As upstream: without a text for the decoder it starts from the pad token.
            "DECODER_INPUT_ID": pad_ids,
            "REQUEST_DECODER_INPUT_LEN": _column(1, count),
            "BAD_WORDS_IDS": word_lists(tokenizer, "bad_words", inputs.get("BAD_WORDS_DICT"), count),
            "STOP_WORDS_IDS": word_lists(tokenizer, "stop_words", inputs.get("STOP_WORDS_DICT"), count),
            "EMBEDDING_BIAS": embedding_bias(
                tokenizer, inputs.get("EMBEDDING_BIAS_WORDS"), inputs.get("EMBEDDING_BIAS_WEIGHTS"), count
            ),
            "OUT_END_ID": inputs.get("END_ID", _column(end_id, count)),
            "OUT_PAD_ID": pad_ids,
        }

    def _prompt(self, text: bytes) -> list[int]:
        return self.tokenizer.encode_bounded(
            text_of("text_input", text),
            self._max_input_len,
            name="The prompt",
            limit=f"this engine was built for max_input_len {self._max_input_len}",
            add_special_tokens=self._special,
        )


def _column(value: int, count: int) -> Array:
    return np.full((count, 1), value, dtype=np.int32)
