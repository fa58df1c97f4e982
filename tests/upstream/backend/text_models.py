"""Sources of the models around the backend, as upstream has them: tokenizer, BLS, disaggregated BLS."""

from __future__ import annotations

from tests.runtime.model_repository.python_models import HEAD, TENSORRT_LLM_BLS

_TOKENIZER = """
    @property
    def tokenizer(self):
        if not hasattr(self, "_tokenizer"):
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(self.parameters["tokenizer_dir"] + "/tokenizer.json")
        return self._tokenizer
"""

PREPROCESSING = (
    HEAD
    + """
        tokens = self.tokenizer.encode(tensor(request, "QUERY")[0][0].decode("utf-8")).ids
        return [
            made("INPUT_ID", [tokens]),
            made("REQUEST_INPUT_LEN", [[len(tokens)]]),
            made("REQUEST_OUTPUT_LEN", tensor(request, "REQUEST_OUTPUT_LEN")),
        ]
"""
    + _TOKENIZER
)

POSTPROCESSING = (
    HEAD
    + """
        tokens = tensor(request, "TOKENS_BATCH").flatten().tolist()
        text = self.tokenizer.decode(tokens).encode("utf-8")
        return [made("OUTPUT", [[text]], np.object_)]
"""
    + _TOKENIZER
)

DISAGGREGATED_BLS = (
    HEAD
    + """
        names = ["input_ids", "input_lengths", "request_output_len"]
        inputs = [pb_utils.get_input_tensor_by_name(request, name) for name in names]
        outputs = ["output_ids", "sequence_length", "context_phase_params"]
        first = self.ask("context_model_name", "context_only", outputs, inputs)
        phase = pb_utils.get_output_tensor_by_name(first, "context_phase_params")
        second = self.ask("generation_model_name", "generation_only", outputs[:2], [*inputs, phase])
        return [*second.output_tensors(), made("context_logits", [[0]], np.float32)]

    def ask(self, model, kind, outputs, inputs):
        request = pb_utils.InferenceRequest(
            model_name=self.parameters[model],
            requested_output_names=outputs,
            inputs=inputs,
            parameters={"request_type": kind},
        )
        answer = request.exec()
        if answer.has_error():
            raise pb_utils.TritonModelException(answer.error().message())
        return answer
"""
)

SOURCES = {
    "preprocessing": PREPROCESSING,
    "postprocessing": POSTPROCESSING,
    "tensorrt_llm_bls": TENSORRT_LLM_BLS,
    "disaggregated_serving_bls": DISAGGREGATED_BLS,
}
