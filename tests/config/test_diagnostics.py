"""Every kind of wrong value: its code, its place, and what is said about it."""

from __future__ import annotations

import pytest

from tests.config.files import CLUSTER, JOB, Folder
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.validation.load import load


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("engine:\n  dtyp: float16\n", "unknown-key", "job:3 engine.dtyp"),
        ("tensor_parallel: 2\n", "unknown-key", "job:2 tensor_parallel"),
        ("engine:\n  tensor_parallel: '2'\n", "wrong-type", "job:3 engine.tensor_parallel"),
        ("engine:\n  tensor_parallel: 2.0\n", "wrong-type", "job:3 engine.tensor_parallel"),
        ("engine:\n  tensor_parallel: true\n", "wrong-type", "job:3 engine.tensor_parallel"),
        ("engine: [1, 2]\n", "wrong-type", "job:2 engine"),
        ("engine:\n", "wrong-type", "job:2 engine"),
        ("repository:\n  decoupled: on\n", "wrong-type", "job:3 repository.decoupled"),
        ("companion:\n  request:\n    prompt: 12\n", "wrong-type", "job:4 companion.request.prompt"),
        ("engine:\n  dtype: fp16\n", "not-a-choice", "job:3 engine.dtype"),
        ("engine:\n  max_batch_size: 0\n", "out-of-range", "job:3 engine.max_batch_size"),
        ("engine:\n  max_batch_size: 0x7fffffffffff\n", "out-of-range", "job:3 engine.max_batch_size"),
        ("engine:\n  max_batch_size: " + "9" * 5000 + "\n", "out-of-range", "job:3 "),
        ("companion:\n  benchmark:\n    rate_per_second: .inf\n", "out-of-range",
         "job:4 companion.benchmark.rate_per_second"),
        ("companion: {benchmark: {rate_per_second: 0}}\n", "out-of-range",
         "job:2 companion.benchmark.rate_per_second"),
        ('model:\n  path: "/a\\nb"\n', "bad-value", "job:3 model.path"),
        ('companion:\n  request:\n    prompt: "a\\0b"\n', "bad-value", "job:4 companion.request.prompt"),
        (f"companion:\n  request:\n    prompt: {'a' * 100_001}\n", "too-large",
         "job:4 companion.request.prompt"),
        ("partion: gpu\n", "unknown-key", "cluster:2 partion"),
        ("scheduler: pbs\n", "not-a-choice", "cluster:2 scheduler"),
        ("gpus_per_node: -1\n", "out-of-range", "cluster:2 gpus_per_node"),
        ("slurm_conf: etc/slurm.conf\n", "bad-value", "cluster:2 slurm_conf"),
        ("partition: ''\n", "bad-value", "cluster:2 partition"),
        ("mpi: --pmix\n", "bad-value", "cluster:2 mpi"),
        ("container: {runtime: pyxis, image: i, mounts: ['/a:/a,/b:/b']}\n", "bad-value",
         "cluster:2 container.mounts[0]"),
        ("setup: module load cuda\n", "wrong-type", "cluster:2 setup"),
        ("setup:\n  - ok\n  - 7\n", "wrong-type", "cluster:4 setup[1]"),
        ("environment:\n  THREADS: 4\n", "wrong-type", "cluster:3 environment.THREADS"),
        ("environment:\n  A-B: x\n", "bad-value", "cluster:3 environment.A-B"),
        ("sbatch_options: [mail-type=FAIL]\n", "bad-value", "cluster:2 sbatch_options[0]"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_placed(files: Folder, text: str, code: str, place: str) -> None:
    in_job = place.startswith("job")
    diagnostic = files.diagnostic(JOB + text * in_job, CLUSTER + text * (not in_job))
    assert (diagnostic.code, files.place(diagnostic)) == (code, place)


def test_a_missing_name_is_placed_at_its_section(files: Folder) -> None:
    found = files.diagnostics("model:\n  synthetic: tiny-llama\n", "partition: gpu\n")
    assert [(f.code, files.place(f)) for f in found] == [
        ("missing", "job:1 name"),
        ("missing", "cluster:1 name"),
    ]


def test_everything_is_reported_at_once(files: Folder) -> None:
    job = "name: a b\nengine:\n  dtype: fp16\n  tp: 2\n  dtype: float32\n"
    found = files.diagnostics(job, "nam: x\n", "serve.nodes=0", "nonsense")
    assert {(f.code, files.place(f)) for f in found} == {
        ("bad-setting", "--set "),
        ("duplicate-key", "job:5 engine.dtype"),
        ("bad-value", "job:1 name"),
        ("not-a-choice", "job:3 engine.dtype"),
        ("unknown-key", "job:4 engine.tp"),
        ("out-of-range", "--set serve.nodes"),
        ("unknown-key", "cluster:1 nam"),
        ("missing", "cluster:1 name"),
    }


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("engine: {tensor_paralel: 2}", "'tensor_parallel'"),
        ("engine: {tp: 2}", "'tensor_parallel'"),
        ("tensor_parallel: 2", "'engine.tensor_parallel'"),
        ("serv: {}", "'serve'"),
    ],
)
def test_an_unknown_key_names_the_nearest_valid_one(files: Folder, key: str, nearest: str) -> None:
    assert nearest in (files.diagnostic(f"{JOB}{key}\n").hint or "")


@pytest.mark.parametrize(
    ("job", "cluster", "remedy"),
    [
        ("engine: {tensor_parallel: '2'}", "", "without quotes: 2"),
        ("repository: {decoupled: yes}", "", "write true"),
        ("", "environment: {THREADS: 4}", "in quotes: '4'"),
        ("", "setup: module load cuda", "['module load cuda']"),
        ("engine: {dtype: float-16}", "", "write float16"),
    ],
)
def test_the_remedy_can_be_copied(files: Folder, job: str, cluster: str, remedy: str) -> None:
    assert remedy in (files.diagnostic(f"{JOB}{job}\n", f"name: here\n{cluster}\n").hint or "")


def test_choices_are_listed(files: Folder) -> None:
    choices = files.diagnostic(JOB + "engine: {dtype: fp16}\n").choices
    assert choices == ("auto", "float32", "float16", "bfloat16")


def test_the_error_ends_with_the_next_command(files: Folder) -> None:
    job_file = files.folder / "my job.yaml"
    job_file.write_text("nam: x\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(job_file, "sandbox")
    assert str(caught.value).endswith(f"trtllm-hpc render '{job_file}' --cluster sandbox")


def test_control_characters_do_not_reach_the_terminal(files: Folder) -> None:
    text = JOB + '"\\e[2J\\nmodel": 1\nengine: {dtype: "\\e[2J"}\n'
    message = "".join(map(str, files.diagnostics(text)))
    assert "\x1b" not in message
    assert r"\x1b[2J" in message


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("serve.time_limit_minutes", "90", 90),
        ("serve.time_limit_minutes", "90m", 90),
        ("serve.time_limit_minutes", "4:00:00", 240),
        ("serve.time_limit_minutes", "30:00", 30),
        ("serve.time_limit_minutes", "1-12", 2160),
        ("serve.time_limit_minutes", "1-00:30:00", 1470),
        ("serve.ready_timeout_seconds", "1m", 60),
        ("serve.drain_seconds", "1m30s", 90),
        ("serve.hang_timeout_seconds", "2m", 120),
        ("serve.idle_minutes", "90s", 1.5),
        ("companion.benchmark.duration_seconds", "0.5h", 1800.0),
        ("companion.benchmark.request_timeout_seconds", "2m", 120.0),
        ("cluster.limits.time_minutes", "2d", 2880),
    ],
)
def test_a_time_is_a_number_in_the_unit_of_its_key(files: Folder, key: str, text: str, value: float) -> None:
    facts = files.load(JOB, CLUSTER, f"{key}={text}")
    found: object = facts.cluster if key.startswith("cluster.") else facts.job
    for name in key.removeprefix("cluster.").split("."):
        found = getattr(found, name)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("90s", "90s is 1.5 minutes, and must be a whole number of minutes"),
        ("soon", "'soon' is not a time; write it like 90s, 15m"),
        ("1:2:3:4", "is not a time"),
        ("0m", "must be at least 1"),
        ("'60'", "must be a whole number, not the text '60'"),
    ],
)
def test_a_wrong_time_is_refused(files: Folder, text: str, words: str) -> None:
    diagnostic = files.diagnostic(f"{JOB}serve:\n  time_limit_minutes: {text}\n")
    assert files.place(diagnostic) == "job:3 serve.time_limit_minutes" and words in diagnostic.message
