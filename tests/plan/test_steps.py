"""What the steps of a build are made of; their command lines are in ``outcomes.py``."""

from __future__ import annotations

from tests.plan.made_steps import job, notes, options, steps

LLAMA_8B = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"}


def test_a_step_names_its_release_and_layout_and_no_folder_of_this_run() -> None:
    convert, build = steps(job("0.16.0", engine={"tensor_parallel": 2}))
    assert build.identity["tensorrt_llm"] == "0.16.0" and build.identity["tensorrt"] == "10.7.0"
    assert build.identity["layout"]["tensor_parallel"] == 2
    assert not any(isinstance(word, str) and word.startswith("/models") for word in convert.commands[0])


def test_auto_is_the_checkpoint_s_own_type_where_a_release_needs_a_type() -> None:
    made = job("0.9.0")
    convert, build = steps(made, config=LLAMA_8B)
    assert options(convert.commands[0])["--dtype"] == ("bfloat16",)
    assert options(build.commands[0])["--gpt_attention_plugin"] == ("bfloat16",)
    assert notes(made, LLAMA_8B) == ()
    assert options(steps(job("0.15.0"), config=LLAMA_8B)[0].commands[0])["--dtype"] == ("auto",)
