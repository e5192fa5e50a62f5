"""Asking a checkpoint: what is stored, what is asked again, local task files, and what is refused."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import gatebench.hf
from gatebench.data.corpus import BuildOptions, CorpusPlan, build_corpus
from gatebench.data.text_files import local_source
from gatebench.errors import DoesNotFit, UserError
from gatebench.evaluation.benchmarks import bundled, items
from gatebench.evaluation.benchmarks.checkpoint import Checkpoint
from gatebench.evaluation.benchmarks.harness_model import HarnessModel
from gatebench.evaluation.benchmarks.harness_tasks import HARNESS, HarnessTask
from gatebench.evaluation.benchmarks.run_benchmarks import run
from gatebench.evaluation.benchmarks.suites import CHOICE, Options, of_suite
from gatebench.files import read_object
from tests.training.tiny_run import RunTiny

QUICK = Options(limit=8)


def ask(path: Path, *names: str, options: Options = QUICK, **named: Any) -> list[dict[str, Any]]:
    return run([Checkpoint(str(path))], options, names=names, **named)[0]


def write_task(folder: Path, *, answer: int = 0, **more: object) -> Path:
    """A task file of the harness, `local_sums`, over two lines of local JSON."""
    folder.mkdir(exist_ok=True)
    rows = [{"q": f"{n} + 1 =", "choices": [str(n + 1), "no"], "answer": answer} for n in (1, 2)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    content = {
        "task": "local_sums",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "q",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 3.0},
    }
    (folder / "local_sums.yaml").write_text(json.dumps(content | more), encoding="utf-8")
    return folder


def test_a_result_says_what_it_is(fresh_run: Path) -> None:
    record = ask(fresh_run, "gb_copy")[0]
    assert read_object(fresh_run / "benchmarks" / "gb_copy-limit8.json") == record
    assert record["asked"] == {
        "task": "gb_copy",
        "task_version": "1",
        "harness": HARNESS,
        "shots": 0,
        "limit": 8,
        "seed": 1234,
        "checkpoint": "quick/run",
        "corpus": "tiny",
        "corpus_fingerprint": Checkpoint(str(fresh_run)).corpus.fingerprint,
    }
    assert (record["n"], record["chance"], record["context"], record["bos"]) == (8, 0.25, 192, True)
    assert record["answer_bpb"] > 0
    assert record["score"] * 8 == int(record["score"] * 8)


def test_only_what_is_missing_is_asked(fresh_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ask(fresh_run, "gb_copy", "gb_brackets")
    asked = []
    monkeypatch.setattr(bundled, "_choices", lambda name, *rest: asked.append(name) or {"score": 0.5})
    assert ask(fresh_run, "gb_copy", "gb_brackets") == first
    assert asked == []
    ask(fresh_run, "gb_copy", "gb_next_line")
    assert asked == ["gb_next_line"]
    ask(fresh_run, "gb_copy", options=Options(limit=8, seed=5))
    assert asked == ["gb_next_line", "gb_copy"]


def test_a_stop_loses_only_the_task_at_hand(fresh_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = bundled._choices

    def stopped(name: str, *rest: Any) -> Any:
        if name == "gb_copy":
            raise KeyboardInterrupt
        return real(name, *rest)

    monkeypatch.setattr(bundled, "_choices", stopped)
    with pytest.raises(KeyboardInterrupt):
        ask(fresh_run, "gb_brackets", "gb_copy")
    assert [path.name for path in (fresh_run / "benchmarks").iterdir()] == ["gb_brackets-limit8.json"]


def test_a_local_task_of_the_harness(fresh_run: Path, tmp_path: Path) -> None:
    options = Options(task_dir=write_task(tmp_path / "tasks"))
    right = ask(fresh_run, "local_sums", options=options)[0]
    assert (right["n"], right["chance"], right["asked"]["task_version"]) == (2, 0.5, "3.0")
    assert right["asked"]["corpus"] is None
    others = Options(task_dir=write_task(tmp_path / "others", answer=1))
    (fresh_run / "benchmarks" / "local_sums.json").unlink()
    wrong = ask(fresh_run, "local_sums", options=others)[0]
    assert right["score"] + wrong["score"] == 1


def export(run_dir: Path, to: Path, *, scale: float = 1.0) -> Path:
    """Write the run's model as a checkpoint, its output weights multiplied by `scale`."""
    model, tokenizer = gatebench.hf.from_run(run_dir)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(scale)  # type: ignore[union-attr,operator]
    if to.is_dir():
        shutil.rmtree(to)
    gatebench.hf.export(model, tokenizer, to, layout="gatebench")
    return to


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GATEBENCH_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_results_of_a_checkpoint_are_of_its_weights_and_not_of_its_name(run_dir: Path, root: Path) -> None:
    options = Options(task_dir=write_task(root / "tasks"))
    first = ask(export(run_dir, root / "m"), "local_sums", options=options)[0]
    assert ask(export(run_dir, root / "m"), "local_sums", options=options)[0] == first  # the same again: stored
    other = ask(export(run_dir, root / "m", scale=0.1), "local_sums", options=options)[0]
    assert other["answer_bpb"] != first["answer_bpb"]
    (root / "m" / "tokenizer_config.json").write_text(
        json.dumps(json.loads((root / "m" / "tokenizer_config.json").read_text()) | {"model_max_length": 64})
    )
    assert ask(root / "m", "local_sums", options=options)[0]["asked"] != other["asked"]


def test_one_relative_name_in_two_folders_is_two_checkpoints(
    run_dir: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(task_dir=write_task(root / "tasks"))
    for name, scale in (("a", 1.0), ("b", 0.1)):
        export(run_dir, root / name / "m", scale=scale)
    found = []
    for name in ("a", "b", "a"):
        monkeypatch.chdir(root / name)
        found.append(ask(Path("m"), "local_sums", options=options)[0])
    assert found[0] == found[2] != found[1]
    assert found[0] == ask(root / "a" / "m", "local_sums", options=options)[0]
    assert len(list((root / "results" / "benchmarks").iterdir())) == 2


def test_results_of_a_task_file_are_of_all_that_it_is_made_of(fresh_run: Path, tmp_path: Path) -> None:
    folder = write_task(tmp_path / "tasks")
    task, base = folder / "local_sums.yaml", tmp_path / "base.yaml"
    content = json.loads(task.read_text())
    base.write_text(json.dumps({"doc_to_choice": content.pop("doc_to_choice")}))
    (folder / "texts.py").write_text("def text(doc):\n    return doc['q']\n")
    del content["doc_to_text"]
    task.write_text(f"include: ../base.yaml\ndoc_to_text: !function texts.text\n{yaml.safe_dump(content)}")
    options = Options(task_dir=folder)

    def times() -> str:
        return str(ask(fresh_run, "local_sums", options=options)[0]["asked"]["task_files"])

    seen = [times()]
    assert times() == seen[0]
    for path, old, new in (
        (folder / "rows.jsonl", "1 + 1", "01 + 1"),
        (folder / "texts.py", "['q']", "['q'] + ' '"),
        (base, '"doc_to_choice"', ' "doc_to_choice"'),
        (task, "version: 3.0", "version: 3.0 "),
    ):
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        seen.append(times())
    assert len(set(seen)) == 5
    assert "task_files" not in ask(fresh_run, "gb_copy")[0]["asked"]


def test_a_task_that_states_0_shots_has_none(fresh_run: Path, tmp_path: Path) -> None:
    folder = write_task(tmp_path / "tasks", num_fewshot=0, fewshot_split="test")
    said: list[str] = []
    none, three = (
        ask(fresh_run, "local_sums", options=Options(shots, task_dir=folder), log=said.append)[0] for shots in (None, 3)
    )
    assert none == three and three["asked"]["shots"] == 0
    assert said[-1] == "task 'local_sums': has 0 shots, whatever --shots says"
    free = write_task(tmp_path / "free", fewshot_split="test")
    two, one = (ask(fresh_run, "local_sums", options=Options(shots, task_dir=free))[0] for shots in (1, 0))
    assert (two["asked"]["shots"], one["asked"]["shots"]) == (1, 0) and two["answer_bpb"] != one["answer_bpb"]


def test_in_a_group_members_that_state_0_shots_have_none(fresh_run: Path, tmp_path: Path) -> None:
    folder = write_task(tmp_path / "tasks", num_fewshot=0, fewshot_split="test")
    content = json.loads((folder / "local_sums.yaml").read_text())
    del content["num_fewshot"]
    (folder / "other.yaml").write_text(json.dumps(content | {"task": "other"}))
    group = {"group": "both", "task": ["local_sums", "other"], "aggregate_metric_list": [{"metric": "acc"}]}
    (folder / "both.yaml").write_text(json.dumps(group))
    record = ask(fresh_run, "both", options=Options(1, task_dir=folder))[0]
    assert (record["asked"]["shots"], record["shots_asked"], record["stated_0_shots"]) == (1, 1, ["local_sums"])


@pytest.mark.parametrize(
    ("name", "ours"),
    [("niah_single_1", "niah_single_1"), ("ruler_vt", "vt"), ("ruler", "<task>"), ("niah_multivalue", "<task>")],
)
def test_rulers_names_of_the_harness_name_ours(fresh_run: Path, name: str, ours: str) -> None:
    line = rf"task '{name}': lm-eval's RULER takes the name of a tokenizer, .* legal: gb_ruler_{ours}_<length>, made"
    with pytest.raises(UserError, match=line):
        ask(fresh_run, name)


def test_an_error_of_a_tasks_own_code_is_not_told_as_missing_data(fresh_run: Path, tmp_path: Path) -> None:
    folder = write_task(tmp_path / "tasks", custom_dataset="!")
    text = (
        (folder / "local_sums.yaml")
        .read_text()
        .replace('"custom_dataset": "!"', '"custom_dataset": !function own.data')
    )
    (folder / "local_sums.yaml").write_text(text)
    (folder / "own.py").write_text("def data(**_):\n    raise ValueError('no such key')\n")
    with pytest.raises(UserError, match=r"task 'local_sums': cannot be loaded \(ValueError: no such key\)"):
        ask(fresh_run, "local_sums", options=Options(task_dir=folder))
    (folder / "rows.jsonl").unlink()
    (folder / "local_sums.yaml").write_text(text.replace(', "custom_dataset": !function own.data', ""))
    with pytest.raises(UserError, match=r"task 'local_sums': .*cannot be read"):
        ask(fresh_run, "local_sums", options=Options(task_dir=folder))


def test_shots_of_a_task_are_its_own_unless_asked_for(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "tasks", num_fewshot=2)
    assert HarnessTask("local_sums", folder).shots == 2
    assert (HarnessTask("hellaswag").shots, HarnessTask("gsm8k_cot").shots, HarnessTask("mmlu").shots) == (10, 4, 5)


@pytest.mark.parametrize(
    ("name", "data_set"), [("hellaswag", "Rowan/hellaswag"), ("mmlu", "cais/mmlu"), ("arc_easy", "allenai/ai2_arc")]
)
def test_missing_data_is_named_before_a_model_is_loaded(fresh_run: Path, name: str, data_set: str) -> None:
    (fresh_run / "checkpoints").unlink()
    with pytest.raises(UserError, match=f"task '{name}': data set {data_set} cannot be read"):
        ask(fresh_run, "gb_copy", name)


def test_what_is_unknown_is_refused(fresh_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="task 'gb_copi': no bundled task; did you mean gb_copy"):
        ask(fresh_run, "gb_copi")
    with pytest.raises(UserError, match="task 'mmlu_stem_tasks': a tag without a score of its own"):
        ask(fresh_run, "mmlu_stem_tasks")
    with pytest.raises(UserError, match="no such folder"):
        ask(fresh_run, "local_sums", options=Options(task_dir=tmp_path / "nowhere"))


def test_code_is_run_with_permission_alone(fresh_run: Path) -> None:
    for name in ("gb_humaneval", "humaneval"):
        with pytest.raises(UserError, match=f"task '{name}': runs programs .* --confirm-run-unsafe-code"):
            ask(fresh_run, name)


def test_a_run_without_a_model_is_refused(fresh_run: Path) -> None:
    (fresh_run / "summary.json").unlink()
    with pytest.raises(UserError, match="quick/run: the run is not finished"):
        ask(fresh_run, "gb_copy")


def test_what_does_not_fit_is_refused_by_name_and_left_out_of_a_suite(
    fresh_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DoesNotFit, match="task 'gb_ruler_vt_256' with 0 shots: the model's context is 192 tokens"):
        ask(fresh_run, "gb_ruler_vt_256")
    monkeypatch.setattr(
        "gatebench.evaluation.benchmarks.run_benchmarks.of_suite", lambda *a, **k: ("gb_ruler_vt_256", "gb_brackets")
    )
    said: list[str] = []
    records = ask(fresh_run, log=said.append)
    assert [record["asked"]["task"] for record in records] == ["gb_brackets"]
    assert said[1].startswith("left out: task 'gb_ruler_vt_256'")


@pytest.mark.slow
def test_a_suite_goes_on_without_tasks_that_a_corpus_has_no_text_for(run_tiny: RunTiny, tmp_path: Path) -> None:
    """A corpus of one's own, of one domain, has none of those that items are made of."""
    rng = random.Random(0)
    lines = tmp_path / "own.jsonl"
    texts = (" ".join(f"w{rng.randrange(400)}" for _ in range(400)) for _ in range(60))
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    plan = CorpusPlan("own", (local_source([lines]),), BuildOptions(vocab_size=300), pins={})
    corpus = build_corpus(plan, tmp_path / "own", log=lambda line: None)
    path = tmp_path / "quick" / "run"
    run_tiny(path, f"data.corpus={corpus}", "model.vocab_size=300", "data.seq_len=192", "train.steps=6")
    with pytest.raises(DoesNotFit, match="'gb_next_line' with 0 shots: corpus 'own' has no domain 'literature'; legal"):
        ask(path, "gb_next_line")
    said: list[str] = []
    records = ask(path, log=said.append)
    assert {"gb_brackets", "gb_copy"} <= {record["asked"]["task"] for record in records}
    left_out = [line for line in said if line.startswith("left out: ")]
    assert sum("has no domain" in line for line in left_out) == len(items.CLOZE_DOMAINS) + 1


def test_questions_of_others_that_do_not_fit_are_counted(fresh_run: Path) -> None:
    record = ask(fresh_run, "gb_mmlu_dev")[0]
    assert 100 < record["n_too_long"] < 281  # 192 tokens of a vocabulary of 512 hold little


def test_ruler_and_humaneval_are_generated(fresh_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HarnessModel, "max_length", 512)  # nothing but the shortest tasks fits 192 of these tokens
    options = Options(limit=3, unsafe_code=True)
    ruler, code = ask(fresh_run, "gb_ruler_fwe_256", "gb_humaneval", options=options)
    assert (ruler["n"], ruler["chance"], ruler["ruler"]["max_new_tokens"]) == (3, 0.0, 32)
    assert code["n"] + code["n_too_long"] == 3
    assert code["metric"] == "pass@1"
    assert "sandbox" in code


def test_suites() -> None:
    assert of_suite("offline", context=256, unsafe_code=False) == tuple(CHOICE)
    with_ruler = of_suite("offline", context=1024, unsafe_code=True)
    assert with_ruler[: len(CHOICE) + 1] == (*CHOICE, "gb_humaneval")
    assert with_ruler[len(CHOICE) + 1 :][::6] == ("gb_ruler_niah_single_1_512", "gb_ruler_niah_single_1_1024")
    assert of_suite("paper", context=0, unsafe_code=False) == ("hellaswag", "mmlu", "gsm8k_cot", "ceval-valid", "cmmlu")
    with pytest.raises(UserError, match="--suite all: unknown; legal: offline, paper"):
        of_suite("all", context=0, unsafe_code=False)
