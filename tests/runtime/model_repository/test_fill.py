"""From a template's text and values to Triton's message, and back to text."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trtllm_hpc.runtime.model_repository.recipe import Value
from trtllm_hpc.runtime.model_repository.writer import fill, find_placeholders, schema, text_format

TEMPLATE = """# It's ${said} in a comment.
name: "model" # and "${here}
max_batch_size: ${batch}
model_transaction_policy { decoupled: ${decoupled} }
input [ { name: "x" data_type: ${kind} dims: [ -1 ] } ]
parameters: { key: "path" value: { string_value: "${path}" } }
parameters: { key: 'wrapped' value: { string_value: 'a\\'b ${path} c' } }
parameters: {
  key: "limit"
  value: {
    string_value: "${limit}"
  }
}
"""
VALUES: dict[str, Value | None] = {
    "batch": 8,
    "decoupled": False,
    "kind": "TYPE_FP16",
    "path": "/p",
    "limit": 2560,
}


def filled(values: dict[str, Value | None] | None = None, template: str = TEMPLATE) -> Any:
    message, problems = fill(template, {**VALUES, **(values or {})}, "model")
    assert not problems, problems
    return message


def written(message: Any) -> dict[str, str]:
    """Parameters as Triton reads them from the text that would be written."""
    text = text_format().MessageToString(message, as_utf8=True)
    again = text_format().Parse(text, schema().ModelConfig())
    return {key: value.string_value for key, value in again.parameters.items()}


def test_structure_is_filled_with_typed_values() -> None:
    message = filled()
    assert (message.name, message.max_batch_size) == ("model", 8)
    assert message.model_transaction_policy.decoupled is False
    assert message.input[0].data_type == schema().TYPE_FP16


def test_comments_and_quotes_are_distinguished() -> None:
    found = {(place.name, place.line, place.structural) for place in find_placeholders(TEMPLATE)}
    assert found == {
        ("batch", 3, True),
        ("decoupled", 4, True),
        ("kind", 5, True),
        ("path", 6, False),
        ("path", 7, False),
        ("limit", 11, False),
    }


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives(text: str) -> None:
    text_of = written(filled({"path": text}))
    assert text_of["path"] == text
    assert text_of["wrapped"] == f"a'b {text} c"


def test_a_value_may_hold_what_would_be_a_placeholder_elsewhere() -> None:
    # Filled in one pass: what a value holds is not looked at again.
    assert written(filled({"path": "/a/${limit}/b"}))["path"] == "/a/${limit}/b"


def test_null_removes_the_parameter() -> None:
    assert set(written(filled({"limit": None}))) == {"path", "wrapped"}


def test_everything_that_is_missing_is_reported_at_once_with_lines() -> None:
    values: dict[str, Value | None] = {"decoupled": True, "kind": None}
    message, problems = fill(TEMPLATE, values, "tensorrt_llm")
    assert message is None
    assert [(problem.line, problem.message) for problem in problems] == [
        (3, "nothing defines ${batch} (max_batch_size)."),
        (5, "${kind} (data_type) has no value, and Triton loads no model without one."),
        (6, "nothing defines ${path} (string_value)."),
        (7, "nothing defines ${path} (string_value)."),
        (11, "nothing defines ${limit} (string_value)."),
    ]
    assert problems[0].hint == "set repository.parameters.tensorrt_llm.batch"


def test_structure_takes_no_text_that_is_not_a_word() -> None:
    message, problems = fill(TEMPLATE, {**VALUES, "kind": "TYPE_FP16 dims: [ 1 ]"}, "model")
    assert message is None
    assert [problem.line for problem in problems] == [5]
