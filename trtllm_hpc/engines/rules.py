"""The rules of jobs with an engine of TensorRT-LLM."""

from __future__ import annotations

from trtllm_hpc.engines import engine_rules, method_rules, repository_rules, toolchain_rules

RULES = (
    toolchain_rules.family_is_known,
    toolchain_rules.toolchain_exists,
    toolchain_rules.examples_are_known,
    toolchain_rules.keys_have_options,
    toolchain_rules.raw_options_are_taken,
    engine_rules.inflight_needs_paged_cache,
    engine_rules.decoding_matches,
    engine_rules.prompts_over_paged_cache,
    engine_rules.encoder_decoder_matches,
    engine_rules.answers_fit_default,
    method_rules.lora_names_modules,
    method_rules.adapters_can_be_asked_for,
    method_rules.adapters_can_be_converted,
    method_rules.speculative_is_whole,
    method_rules.quantization_is_whole,
    method_rules.build_py_leaves_no_choice,
)
"""Whatever serves the engine."""
REPOSITORY_RULES = (
    repository_rules.no_llm_api,
    repository_rules.repository_keys_exist,
    repository_rules.one_window_before_lists,
    repository_rules.repository_has_tokenizer,
    repository_rules.repository_parameters_exist,
)
"""Of upstream's model repository, with Triton."""
