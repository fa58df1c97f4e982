"""``trtllm-hpc init``: files that load as they are, and with what stands behind '#'."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.cli.typed import home as home
from tests.runs.checkpoints import checkpoint
from tests.scheduler.test_discovery import NEW_LIST, PARTITIONS, fake_slurm
from trtllm_hpc.backends.tensorrt_llm_rules import KEYS
from trtllm_hpc.cli import command
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.engine import Engine, KvCache, Repository
from trtllm_hpc.config.files import read_job
from trtllm_hpc.config.job import Model
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.runs.job_files import copy_of, shipped_jobs
from trtllm_hpc.validation.load import load


def has_pytriton(monkeypatch: pytest.MonkeyPatch, *, has: bool) -> None:
    """Have PyTriton installed, or not; other packages are found as usual, as jinja2 needs."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, package=None: has or None if name == "pytriton" else find_spec(name, package),
    )


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_pytriton(monkeypatch, has=False)
    fake_slurm(tmp_path, monkeypatch, PARTITIONS, NEW_LIST)


@pytest.fixture
def no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


OF_TENSORRT_LLM = (
    *("models", "instances", "batching_strategy", "max_queue_delay_microseconds", "parameters"),
    *("logits_datatype", "encoder_input_features_data_type", "prompt_embedding_table_data_type"),
    *("lora", "plugins", "quantization", "encoder_decoder", "options", "llm_api", "command"),
    "commands",
    *("kv_cache", "repository", "max_attention_window"),
)
"""Keys with a default that the reference backend does nothing with."""


def init(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["init", *arguments], catch_exceptions=False)


def uncommented(path: Path) -> str:
    """The file with every key that stands behind '#', as a person may switch them on."""
    return re.sub(r"(?m)^( *)# ( *[a-z_]+:( |$))", r"\1\2", path.read_text())


@pytest.mark.usefixtures("no_slurm")
def test_the_job_file_loads_with_every_profile_to_try_it_with() -> None:
    result = init("job")
    assert result.output == "Wrote job.yaml.\n  next: trtllm-hpc render job.yaml --cluster local\n"
    for cluster in ("local", "sandbox"):
        assert load(Path("job.yaml"), cluster).job.name == "job"


def test_commented_values_in_the_job_file_are_the_defaults() -> None:
    init("job")
    text = uncommented(Path("job.yaml"))
    # What has no default to show: it is one's own, or follows from other keys.
    own = "path|directory|certificate|nodes|memory_gib|memory_gib_per_node"
    following = (
        "gpus|bls_instances|max_num_tokens|max_tokens|free_gpu_memory_fraction|restarts|frontend|image"
    )
    text = re.sub(rf"(?m)^ *({own}|{following}): .*\n", "", text)
    text = re.sub(r"(?m)^kv_cache:\n(?!  )", "", text)
    Path("all.yaml").write_text(text)
    job, every = load(Path("job.yaml"), "local").job, load(Path("all.yaml"), "local").job
    assert every == job
    sections = [value for value in job.model_dump(exclude_none=True).values() if isinstance(value, dict)]
    keys = {key for section in sections for key in section} - set(OF_TENSORRT_LLM)
    assert [key for key in keys if not re.search(rf"(?m)^ *{key}:", text)] == []


def test_the_job_file_for_tensorrt_llm_loads_and_names_every_key() -> None:
    result = init("job", "llama.yaml", "--backend", "tensorrtllm")
    assert result.output.endswith("render llama.yaml --cluster pyxis\n")
    text = Path("llama.yaml").read_text()
    job = load(Path("llama.yaml"), "pyxis", ["model.family=llama"]).job
    assert (job.name, job.engine.backend, job.engine.max_batch_size) == ("llama", "tensorrtllm", 64)
    for section in (Model, Engine, KvCache, Repository):
        absent = [key for key in section.model_fields if not re.search(rf"(?m)[ #:,]{key}[:,]", text)]
        assert absent == (["stage", "synthetic"] if section is Model else [])


def test_the_job_file_for_pytorch_loads_and_names_every_key_that_has_an_effect() -> None:
    result = init("job", "llama.yaml", "--backend", "pytorch")
    assert result.output.endswith("render llama.yaml --cluster pyxis\n")
    for text in (Path("llama.yaml").read_text(), uncommented(Path("llama.yaml"))):
        loaded = load(Path("llama.yaml"), "pyxis").job
        assert (loaded.engine.backend, loaded.frontend) == ("pytorch", "openai")
        assert [key for key in KEYS["engine"] if not re.search(rf"(?m)[ #]{key}:", text)] == []


@pytest.mark.usefixtures("slurm")
def test_the_profile_has_slurms_values() -> None:
    result = init("cluster", "mysite.yaml")
    assert "chosen: partition gpu: 4 nodes, GPUs: 8" in result.output
    assert result.output.endswith("next: trtllm-hpc doctor tiny-llama --cluster mysite.yaml\n")
    cluster = load(Path("tiny-llama"), "mysite.yaml").cluster
    assert cluster == ClusterProfile(
        name="mysite", partition="gpu", gpus_per_node=8, gpu_type="a100", mpi="pmix"
    )
    text = Path("mysite.yaml").read_text()
    assert "#   cpu (default): 10 nodes, no GPU, 64 CPUs" in text
    assert "pmix, pmi2, pmix_v4, pmix_v5" in text


MIG = "gpu:a100_1g.5gb:7,gpu:a100_3g.20gb:2"


@pytest.mark.parametrize(
    ("partitions", "words", "found", "said"),
    [
        (["mig*|2|" + MIG, "gpu|4|gpu:h100:4"], [], ("gpu", 4, "h100"), "partition gpu: 4 nodes, GPUs: 4"),
        (["mig|2|" + MIG], [], ("mig", 1, "a100_3g.20gb"), "slices of GPUs (MIG): 2 of type a100_3g.20gb"),
        (["gpu|2|gpu:a100:2,gpu:a100_1g.5gb:14"], [], ("gpu", 2, "a100"), "GPUs: 2"),
        (["cpu*|9|(null)", "boost_a100|4|(null)"], [], ("boost_a100", 0, None),
         "if it has GPUs, set gpus_per_node and gpu_request: none"),
        (["one|4|gpu:4", "two*|4|gpu:8", "cpu|9|(null)"], [], ("two", 8, None),
         "the default of one, two, which all fit; --partition NAME chooses another"),
        (["one|4|gpu:4", "two*|4|gpu:8"], ["--partition", "one"], ("one", 4, None), "partition one"),
    ],
)  # fmt: skip
def test_the_partition_that_fits_a_server(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    partitions: list[str],
    words: list[str],
    found: tuple[str, int, str | None],
    said: str,
) -> None:
    rows = " ".join(f"'{one}|64|256000|infinite'" for one in partitions)
    fake_slurm(tmp_path, monkeypatch, f"printf '%s\\n' {rows}", NEW_LIST)
    result = init("cluster", "mysite.yaml", *words)
    assert said in result.output
    cluster = load(Path("tiny-llama"), "mysite.yaml").cluster
    assert (cluster.partition, cluster.gpus_per_node, cluster.gpu_type) == found


@pytest.mark.usefixtures("slurm")
def test_a_partition_that_is_not_there_is_refused_with_those_that_are() -> None:
    result = CliRunner().invoke(command, ["init", "cluster", "--partition", "gpuu"])
    assert result.exit_code and "sinfo lists cpu, gpu" in result.output


@pytest.mark.usefixtures("slurm")
def test_the_profile_has_the_server_of_the_wheel_where_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_pytriton(monkeypatch, has=True)
    assert "chosen: Triton server of the nvidia-pytriton wheel" in init("cluster", "wheel.yaml").output
    assert load(Path("tiny-llama"), "wheel.yaml").cluster.triton.server == "pytriton"
    (tmp_path / "tritonserver").symlink_to("/bin/true")
    assert "wheel" not in init("cluster", "own.yaml").output
    assert load(Path("tiny-llama"), "own.yaml").cluster.triton.server == "tritonserver"


def test_with_pyxis_the_profile_has_nvidias_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a shipped job for it, which names 1.2.1, can be rendered at once."""
    fake_slurm(tmp_path, monkeypatch, PARTITIONS, NEW_LIST, "      --container-image=[USER@]IMAGE")
    result = init("cluster", "mysite.yaml")
    assert result.output.endswith("next: trtllm-hpc doctor qwen3-8b --cluster mysite.yaml\n")
    container = load(Path("qwen3-8b"), "mysite.yaml").cluster.container
    assert (container.runtime, container.image) == (
        "pyxis",
        "nvcr.io#nvidia/tritonserver:26.07-trtllm-python-py3",
    )


@pytest.mark.usefixtures("no_slurm")
def test_without_slurm_the_profile_has_placeholders_and_a_note() -> None:
    result = init("cluster")
    assert "Slurm was not queried" in result.output
    assert load(Path("tiny-llama"), "cluster.yaml").cluster == ClusterProfile(name="cluster")


@pytest.mark.usefixtures("no_slurm")
def test_commented_values_in_the_profile_are_valid() -> None:
    init("cluster")
    Path("all.yaml").write_text(uncommented(Path("cluster.yaml")))
    cluster = load(Path("tiny-llama"), "all.yaml").cluster
    assert cluster.container.runtime == "pyxis"
    assert cluster.partition == "gpu"
    text = Path("all.yaml").read_text()
    assert all(re.search(rf"(?m)^{key}:", text) for key in ClusterProfile.model_fields)


@pytest.mark.parametrize("kind", ["job", "cluster"])
def test_an_existing_file_is_not_replaced(kind: str) -> None:
    Path("here.yaml").write_text("mine")
    with pytest.raises(ConfigError, match="already exists"):
        init(kind, "here.yaml")
    assert Path("here.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("my job (2).yaml", "my-job-2"),
        ("模型.yaml", "my-job"),
        ("a" * 99 + ".yaml", "a" * 64),
    ],
)
def test_the_name_is_made_from_the_files(file: str, name: str) -> None:
    assert init("job", file).exit_code == 0
    assert load(Path(file), "local").job.name == name


def test_a_shipped_job_is_copied_with_a_name_and_a_model_of_ones_own() -> None:
    model = "/scratch/my models/Qwen3"
    done = init("job", "mine.yaml", "--from", "qwen3-30b-a3b", "--model", model)
    assert done.output.endswith("next: trtllm-hpc render mine.yaml --cluster pyxis\n")
    job = load(Path("mine.yaml"), "pyxis").job
    assert (job.name, job.model.path, job.engine.tensor_parallel) == ("mine", model, 2)
    text = Path("mine.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=") and "# GPUs: H100, H200 or B200" in text


def test_a_copy_of_every_shipped_job_differs_in_name_and_model_only(tmp_path: Path) -> None:
    for shipped in shipped_jobs():
        original = read_job(Path(shipped.file))
        if original.model.path is None:
            continue
        (tmp_path / "mine.yaml").write_text(copy_of(shipped.name, "my-own", "Qwen/Qwen3-8B", "hub"))
        model = original.model.model_copy(update={"path": None, "revision": None, "hub": "Qwen/Qwen3-8B"})
        assert read_job(tmp_path / "mine.yaml") == original.model_copy(
            update={"name": "my-own", "model": model}
        )


def test_a_name_of_the_hub_becomes_model_hub_unless_there_is_such_a_folder() -> None:
    words = ("job", "mine.yaml", "--from", "qwen3-8b", "--model", "Qwen/Qwen3-8B")
    assert "model.hub is Qwen/Qwen3-8B, because no folder has this name." in init(*words).output
    model = load(Path("mine.yaml"), "pyxis").job.model
    assert (model.hub, model.path) == ("Qwen/Qwen3-8B", None)
    Path("Qwen/Qwen3-8B").mkdir(parents=True)
    Path("mine.yaml").unlink()
    init(*words)
    model = load(Path("mine.yaml"), "pyxis").job.model
    assert (model.hub, model.path) == (None, str(Path("Qwen/Qwen3-8B").absolute()))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--from", "qwen3-9b"), "qwen3-8b"),
        (
            ("--from", "qwen3-8b", "--backend", "pytorch"),
            "Choose one of --backend, --from and --gpu",
        ),
        (("--model", "/m"), "needs --gpu or --from"),
        (("--goal", "latency", "--model", "/m", "--from", "qwen3-8b"), "--goal needs --gpu"),
        (("--gpu", "h300", "--model", "/m"), "there is no 'h300', only v100-16gb"),
        (("--gpu", "h100", "--model", "Qwen/Qwen3-8B"), "trtllm-hpc models fetch Qwen/Qwen3-8B"),
    ],
)
def test_a_copy_that_cannot_be_is_refused(arguments: tuple[str, ...], said: str) -> None:
    done = init("job", "mine.yaml", *arguments)
    assert done.exit_code == 2 and said in done.output and not Path("mine.yaml").exists()


def test_a_checkpoint_and_a_gpu_are_enough_for_a_job_file(tmp_path: Path) -> None:
    model = checkpoint(tmp_path, "DeepSeek-R1-0528")
    done = init("job", "r1.yaml", "--model", str(model), "--gpu", "h200")
    assert done.output.startswith("Wrote r1.yaml.\n  DeepSeek-R1-0528 on h200 for throughput: ")
    assert "\n  Settings: shipped job file deepseek-r1-h200; " in done.output
    assert done.output.endswith("  next: trtllm-hpc render r1.yaml --cluster pyxis\n")
    engine = load(Path("r1.yaml"), "pyxis").job.engine
    assert (engine.backend, engine.tensor_parallel) == ("pytorch", 8)
