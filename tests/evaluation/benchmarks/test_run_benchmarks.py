"""Asking a checkpoint: what is stored, what is asked again, local task files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gatebench.errors import UserError
from gatebench.evaluation.benchmarks import bundled
from gatebench.evaluation.benchmarks.checkpoint import Checkpoint
from gatebench.evaluation.benchmarks.harness_model import HarnessModel
from gatebench.evaluation.benchmarks.harness_tasks import HARNESS, HarnessTask
from gatebench.evaluation.benchmarks.run_benchmarks import Options, run
from gatebench.evaluation.benchmarks.suites import CHOICE, DoesNotFit, of_suite

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
    assert json.loads((fresh_run / "benchmarks" / "gb_copy-limit8.json").read_text()) == record
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
    assert of_suite("offline", context=256, unsafe_code=False) == CHOICE
    with_ruler = of_suite("offline", context=1024, unsafe_code=True)
    assert with_ruler[: len(CHOICE) + 1] == (*CHOICE, "gb_humaneval")
    assert with_ruler[len(CHOICE) + 1 :][::6] == ("gb_ruler_niah_single_1_512", "gb_ruler_niah_single_1_1024")
    assert of_suite("paper", context=0, unsafe_code=False) == ("hellaswag", "mmlu", "gsm8k_cot", "ceval-valid", "cmmlu")
    with pytest.raises(UserError, match="--suite all: unknown; legal: offline, paper"):
        of_suite("all", context=0, unsafe_code=False)
