"""The real ``lm-eval`` against a server whose answers are known."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.bench.openai_server import Script, openai_server
from trtllm_hpc.client.async_client import AsyncClient
from trtllm_hpc.config.benchmark import Evaluation
from trtllm_hpc.errors import ConfigError, RequestFailed
from trtllm_hpc.evaluation import tasks
from trtllm_hpc.evaluation.evaluate import evaluate, options_of, scores_of
from trtllm_hpc.evaluation.scores import EvaluationSummary
from trtllm_hpc.paths import RunPaths

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]  # lm-eval's import takes seconds


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """What is set for lm-eval's libraries is for its process."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ |= before


def says(text: str) -> bytes:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "text": text, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}).encode()


def evaluated(folder: Path, script: Script, **settings: object) -> EvaluationSummary:
    chosen = Evaluation.model_validate({"tasks": ["facts"], "limit": 20} | settings)
    with openai_server(script) as endpoint:
        client = partial(AsyncClient, endpoint, protocol="openai", retries=0)
        return evaluate(RunPaths(folder), "evaluation", client, chosen)


def answered_by(folder: Path) -> list[str]:
    return RunPaths(folder).evaluation(kind="answers.jsonl").read_text().splitlines()


def test_answers_are_scored_kept_and_not_asked_again(tmp_path: Path) -> None:
    script = Script(body=says("Lisbon.\nAnd more"))
    found = evaluated(tmp_path, script, threshold=0.01)
    right = json.loads(RunPaths(tmp_path).evaluation(kind="scores.json").read_text())["facts"]
    questions = (tasks.OWN / "facts.jsonl").read_text().splitlines()[:20]
    expected = [json.loads(line)["answer"] for line in questions].count("Lisbon")
    assert len(right) == found.tasks[0].questions == found.asked == 20 and sum(right.values()) == expected
    assert script.bodies[0]["messages"][:2] == [
        {"role": "user", "content": "What is the capital of France? Answer with a word or a name."},
        {"role": "assistant", "content": "Paris"},
    ]
    assert {key: script.bodies[0][key] for key in ("temperature", "stop", "max_tokens")} == {
        "temperature": 0.0,
        "stop": ["\n"],
        "max_tokens": 8,
    }
    # Killed half-way: the last line is cut.
    file = RunPaths(tmp_path).evaluation(kind="answers.jsonl")
    file.write_text("\n".join(answered_by(tmp_path)[:12]) + '\n{"abc": "Lis')
    script = Script(body=says("Lisbon"))
    again = evaluated(tmp_path, script)
    assert (again.asked, again.kept, len(script.asked)) == (8, 12, 8)
    assert again.tasks[0].score == found.tasks[0].score
    assert evaluated(tmp_path, Script()).asked == 0  # the first answer after the cut line is kept, too
    lines = RunPaths(tmp_path).evaluation(kind="samples.jsonl").read_text().splitlines()
    sample = json.loads(lines[0])
    assert len(lines) == 20 and sample["question"].startswith("The horse is larger than the dog.")
    assert (sample["part"], sample["target"], sample["answer"]) == ("facts", "horse", "Lisbon.")


def test_completions_have_the_examples_as_text(tmp_path: Path) -> None:
    script = Script(body=says("Lisbon"))
    evaluated(tmp_path, script, protocol="completions", few_shot=1, limit=2, temperature=0.5)
    path, body, _ = script.asked[0]
    start = "What is the capital of France? Answer with a word or a name. Paris\n\n"
    assert path == "/v1/completions" and body["prompt"].startswith(start) and body["seed"] == 1234


def test_a_refused_question_ends_the_evaluation_with_the_servers_reason(tmp_path: Path) -> None:
    with pytest.raises(RequestFailed, match="too long"):
        evaluated(tmp_path, Script(body=b'{"error": {"message": "too long"}}', status=400))


def test_a_run_is_compared_with_another_one(tmp_path: Path) -> None:
    for name, answer in (("base", "Lisbon"), ("new", "Lisbon")):
        evaluated(tmp_path / name, Script(body=says(answer)), not_worse_than=None)
    found = evaluated(tmp_path / "new", Script(), not_worse_than="base")
    assert found.passed and "not worse than the" in found.tasks[0].gate
    missing = evaluated(tmp_path / "new", Script(), not_worse_than="nobody")
    assert missing.passed is False and "run nobody has no score" in missing.tasks[0].gate


def test_options_are_those_of_the_task_unless_the_job_says_otherwise() -> None:
    open_ = {"max_tokens": None, "temperature": None}
    own = {"until": ["Q:"], "max_gen_toks": 2048, "do_sample": False, "temperature": 0.7}
    assert options_of(own, open_) == {"max_tokens": 2048, "temperature": 0.0, "stop_words": ["Q:"]}
    sampled = options_of(own | {"do_sample": True, "top_p": 0.9}, open_ | {"max_tokens": 9})
    assert sampled == {
        **{"max_tokens": 9, "temperature": 0.7, "stop_words": ["Q:"]},
        **{"seed": 1234, "top_p": 0.9},
    }


def test_an_unknown_metric_is_refused_with_those_that_there_are() -> None:
    sample = {"doc_hash": "a" * 64, "filter": "strict", "metrics": ["exact_match"], "exact_match": 1.0}
    assert scores_of({"gsm8k": [sample]}, None) == ("exact_match,strict", {"gsm8k/" + "a" * 16: 1.0})
    with pytest.raises(ConfigError, match=r"no metric 'f1' .*\n.*exact_match,strict"):
        scores_of({"gsm8k": [sample]}, "f1")


def test_parts_of_a_group_without_a_metric_in_common_are_refused() -> None:
    sample = {"doc_hash": "a" * 64, "filter": "strict", "metrics": ["exact_match"], "exact_match": 1.0}
    for other in ({"filter": "none"}, {"metrics": ["f1"], "f1": 1.0}):
        for metric in (None, "exact_match,strict"):
            with pytest.raises(ConfigError, match=r"scores every question of every part.*\n.*name its parts"):
                scores_of({"one": [sample], "two": [sample | other]}, metric)


TASK = """
task: {name}
dataset_path: {folder}
output_type: {kind}
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
unsafe_code: {unsafe}
generation_kwargs: {{until: ["."]}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluation:
    """A folder of tasks like lm-eval's, whose data set is a folder."""
    data = tmp_path / "published"
    data.mkdir()
    (data / "test.jsonl").write_text('{"question": "1 + 1 =", "answer": "2"}\n')
    home = tmp_path / "tasks"
    home.mkdir()
    for name, kind, unsafe in (("sums", "generate_until", False), ("code", "generate_until", True)):
        text = TASK.format(name=name, folder=data, kind=kind, unsafe=str(unsafe).lower())
        (home / f"{name}.yaml").write_text(text)
    (home / "likely.yaml").write_text(
        TASK.format(name="likely", folder=data, kind="loglikelihood", unsafe="false").replace(
            "generation", "#"
        )
    )
    (home / "both.yaml").write_text("group: both\ntask: [sums, code]\n")
    monkeypatch.setattr(tasks, "_lm_eval_folder", lambda: home)
    return Evaluation(tasks=["sums"], data=str(tmp_path / "data"))


def test_data_are_fetched_once_and_then_need_no_network(library: Evaluation, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"data of task sums \(.*published\) are not in .*\n.*--prepare sums"
    ):
        tasks.check_task("sums", library)
    assert tasks.prepare("sums", library) == 1
    (tmp_path / "published" / "test.jsonl").unlink()
    [part] = tasks.load("sums", library).values()
    assert list(part.eval_docs) == [{"question": "1 + 1 =", "answer": "2"}]


def test_a_task_that_shuffles_its_choices_has_the_same_questions_each_time(
    library: Evaluation, tmp_path: Path
) -> None:
    """As GPQA does: once when it asks, once when it scores, and in each run."""
    (tmp_path / "tasks" / "utils.py").write_text(
        "import random\n\ndef shuffled(docs):\n"
        "    return docs.map(lambda doc: {**doc, 'answer': str(random.random())})\n"
    )
    file = tmp_path / "tasks" / "sums.yaml"
    file.write_text(file.read_text() + "process_docs: !function utils.shuffled\n")
    tasks.prepare("sums", library)
    parts = [tasks.load("sums", library)["sums"] for _ in range(2)]
    asked = [list(part.eval_docs) for part in parts for _ in range(2)]
    assert asked[1:] == asked[:1] * 3


def test_what_cannot_be_asked_is_refused_in_a_sentence(library: Evaluation) -> None:
    with pytest.raises(ConfigError, match=r"no task is called 'sum'.*\n.*shipped: facts"):
        tasks.check_task("sum", library)
    with pytest.raises(ConfigError, match="likely compares log-likelihoods"):
        tasks.prepare("likely", library)
    for name in ("code", "both"):
        with pytest.raises(ConfigError, match=f"task {name} runs code that the model writes"):
            tasks.prepare(name, library)


def test_shipped_settings_name_existing_tasks_and_keys() -> None:
    for task, settings in tasks.shipped_settings().items():
        Evaluation.model_validate({"tasks": [task], **settings})
        if task != "facts":
            with pytest.raises(ConfigError, match=f"the data of task {task}"):
                tasks.check_task(task, Evaluation(tasks=[task], data="/nowhere"))
