"""Every generator: prompts that fit, hold their needles, can be solved, and are always the same."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path

import pytest

from gatebench.data.tokens import Corpus
from gatebench.errors import UserError
from gatebench.evaluation.ruler import TASKS, depth_grid, facts, generate, heldout_haystack, score
from gatebench.evaluation.ruler.words import zipf_counts
from tests.evaluation.ruler.prompts import DOWNLOAD_FREE, HAYSTACK, IN_TEXT, decode, encode, samples_of

has_lm_eval = importlib.util.find_spec("lm_eval") is not None and importlib.util.find_spec("wonderwords") is not None
WORDINGS = ("gatebench", pytest.param("ruler", marks=pytest.mark.skipif(not has_lm_eval, reason="no lm-eval")))


def test_the_thirteen_tasks() -> None:
    assert {*DOWNLOAD_FREE, *IN_TEXT, "qa_1", "qa_2"} == TASKS.keys()
    assert {name for name, task in TASKS.items() if task.needs is None} == {*DOWNLOAD_FREE}


@pytest.mark.parametrize("length", [512, 1024, 4096])
@pytest.mark.parametrize("wording", WORDINGS)
@pytest.mark.parametrize("name", TASKS)
def test_prompt_and_answer_fit_and_fill_the_length(name: str, wording: str, length: int, tmp_path: Path) -> None:
    if (name, wording, length) == ("cwe", "ruler", 512):
        pytest.skip("too long a list for 512 tokens")
    unit = {"niah_multikey_3": 90, "qa_1": length, "qa_2": length}.get(name, 50)
    samples = samples_of(name, length, 4, tmp_path, wording=wording)
    for sample in samples:
        assert sample.n_tokens == len(encode(sample.input))
        assert length - unit < sample.n_tokens + sample.max_new_tokens <= length


@pytest.mark.parametrize("length", [512, 2048])
@pytest.mark.parametrize("name", TASKS)
def test_an_oracle_scores_100_and_a_shuffled_one_nothing(name: str, length: int, tmp_path: Path) -> None:
    """Chance is 0 here: numbers, codes and words are drawn from so many that no two samples share one."""
    samples = samples_of(name, length, 8, tmp_path)
    if name in ("qa_1", "qa_2"):  # eight questions, drawn with replacement: keep one of each
        samples = list({sample.answers: sample for sample in samples}.values())
    oracle = [f"They are {' and '.join(sample.answers).upper()}." for sample in samples]
    assert score(name, oracle, samples) == 100
    assert score(name, oracle[1:] + oracle[:1], samples) < 2


@pytest.mark.parametrize("wording", WORDINGS)
@pytest.mark.parametrize("name", [name for name in TASKS if name not in ("cwe", "fwe")])
def test_needles_are_among_the_tokens_of_the_input(name: str, wording: str, tmp_path: Path) -> None:
    for sample in samples_of(name, 1024, 6, tmp_path, wording=wording):
        assert sample.needles
        needles = [sample.input[needle.start : needle.stop] for needle in sample.needles]
        read = decode(encode(sample.input))
        assert all(needle in read for needle in needles)
        hit = any if name.startswith("qa") else all
        assert hit(any(answer in needle for needle in needles) for answer in sample.answers)
        assert all(0 <= needle.depth <= 1 for needle in sample.needles)


@pytest.mark.parametrize("name", [name for name in TASKS if name.startswith("niah")])
def test_a_reader_of_the_prompt_finds_the_answers(name: str, tmp_path: Path) -> None:
    """From the prompt alone: the values of the keys in the question."""
    for sample in samples_of(name, 1024, 6, tmp_path):
        pairs = re.findall(r"The (?:number|uuid) of (\S+) is (\S+)\.", sample.input)
        question = sample.input[sample.input.rindex("What ") :]
        found = [value for key, value in pairs if re.search(rf"\b{key}\b", question)]
        assert sorted(found) == sorted(sample.answers)
        assert len(pairs) == len(set(pairs))


def test_a_reader_follows_the_chain() -> None:
    for sample in generate("vt", encode, 1024, 6):
        question = sample.input[sample.input.rindex("Follow") :]
        value_of: dict[str, str] = {}
        for name, source in re.findall(r"VAR ([A-Z]{5}) = (?:VAR )?(\w+)", question):
            value_of[name] = value_of.get(source, source)
        (asked,) = re.findall(r"Which variables have the value (\d+)", question)
        assert [name for name, value in value_of.items() if value == asked] == list(sample.answers)
        assert len(sample.answers) == 5


@pytest.mark.parametrize(("length", "repeats"), [(512, (6, 1)), (2048, (6, 1)), (4096, (30, 3))])
def test_common_words_come_as_often_as_in_ruler(length: int, repeats: tuple[int, int]) -> None:
    for sample in generate("cwe", encode, length, 3):
        question = sample.input[sample.input.rindex("Some words") :]
        counts = Counter(question.split("\n")[1].split())
        assert len(sample.answers) == 10
        assert {counts[word] for word in sample.answers} == {repeats[0]}
        assert {count for word, count in counts.items() if word not in sample.answers} == {repeats[1]}
        assert (sample.input.count("Some words") == 2) is (length >= 1024)


@pytest.mark.parametrize("length", [256, 512, 1024, 4096])
def test_frequent_words_have_no_tie(length: int) -> None:
    for sample in generate("fwe", encode, length, 5):
        counts = Counter(sample.input.split("\n")[1].split())
        noise, *codes = counts.most_common()
        assert noise[0] == "..."
        assert {code for code, _ in codes[:3]} == {*sample.answers}
        assert len(codes) == 3 or codes[2][1] > codes[3][1]


def test_counts_follow_zipf() -> None:
    assert zipf_counts(1000, 5) == [607, 151, 67, 37, 24]


def test_the_document_with_the_answer_is_there(tmp_path: Path) -> None:
    for name in ("qa_1", "qa_2"):
        for sample in samples_of(name, 512, 6, tmp_path):
            (town,) = re.findall(r"mayor of (\w+)\?", sample.input)
            assert f"The mayor of {town} is called Mr {sample.answers[0]}" in sample.input
            assert len(set(re.findall(r"Document (\d+):", sample.input))) == {"qa_1": 8, "qa_2": 16}[name]


@pytest.mark.parametrize("name", TASKS)
def test_samples_are_a_pure_function_of_the_seed(name: str, tmp_path: Path) -> None:
    samples = samples_of(name, 1024, 4, tmp_path)
    assert samples == samples_of(name, 1024, 4, tmp_path)
    assert samples[:2] == samples_of(name, 1024, 2, tmp_path)
    assert samples != samples_of(name, 1024, 4, tmp_path, seed=43)
    assert len({sample.input for sample in samples}) == 4


@pytest.mark.parametrize("name", [name for name in TASKS if name not in ("cwe", "fwe")])
def test_sample_i_asks_for_the_same_at_every_length(name: str, tmp_path: Path) -> None:
    short, long = (samples_of(name, length, 4, tmp_path) for length in (1024, 2048))
    assert [sample.answers for sample in short] == [sample.answers for sample in long]


@pytest.mark.parametrize(
    ("name", "n_new"), [("niah_single_1", 128), ("vt", 30), ("cwe", 120), ("fwe", 50), ("qa_1", 32)]
)
def test_tokens_for_the_answer_are_nvidias_unless_given(name: str, n_new: int, tmp_path: Path) -> None:
    (sample,) = samples_of(name, 1024, 1, tmp_path)
    (shorter,) = samples_of(name, 1024, 1, tmp_path, max_new_tokens=20)
    assert (sample.max_new_tokens, shorter.max_new_tokens) == (n_new, 20)
    assert shorter.n_tokens >= sample.n_tokens


@pytest.mark.parametrize("name", ["niah_multikey_3", "vt", "cwe", "niah_single_1"])
def test_too_short_a_length_is_refused_with_the_smallest_that_is_not(name: str) -> None:
    with pytest.raises(UserError, match=f"{name!r} does not fit length 128: .* at least") as error:
        generate(name, encode, 128, 5)
    smallest = int(str(error.value).split()[-1])
    assert len(generate(name, encode, smallest, 5)) == 5
    with pytest.raises(UserError, match=f"at least {smallest}$"):
        generate(name, encode, smallest - 1, 5)


def test_what_is_missing_or_wrong_is_named(tmp_path: Path) -> None:
    for name, message in {
        "niah_single": "'niah_single' is unknown: did you mean niah_single_",
        "niah_single_2": "'niah_single_2' needs running text",
        "qa_1": "'qa_1' needs a question file",
    }.items():
        with pytest.raises(UserError, match=message):
            generate(name, encode, 512, 1)
    with pytest.raises(UserError, match=r"wording 'nvidia' is unknown: legal: gatebench, ruler"):
        generate("vt", encode, 512, 1, wording="nvidia")
    with pytest.raises(UserError, match=r"depth 0.5 of task 'vt': it must be 0 to 1, the task one of niah_single_1"):
        generate("vt", encode, 512, 1, depth=0.5)
    with pytest.raises(UserError, match=r"depth 2 of task 'niah_single_1'"):
        generate("niah_single_1", encode, 512, 1, depth=2)
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"data": [{"paragraphs": [{}]}]}')
    with pytest.raises(UserError, match=r"wrong\.json is no SQuAD JSON file: KeyError"):
        generate("qa_1", encode, 512, 1, qa_file=wrong)
    with pytest.raises(UserError, match=r"none\.json: No such file or directory; it must be a HotpotQA JSON file"):
        generate("qa_2", encode, 512, 1, qa_file=tmp_path / "none.json")


def test_a_depth_grid_moves_the_needle_and_nothing_else() -> None:
    depths = [0, 0.25, 0.5, 0.75, 1]
    grid = list(depth_grid("niah_single_2", encode, [512, 1024], depths, 3, haystack=HAYSTACK))
    assert [(length, depth) for length, depth, _ in grid] == [(n, depth) for n in (512, 1024) for depth in depths]
    answers = {tuple(sample.answers for sample in samples) for _, _, samples in grid}
    assert len(answers) == 1
    for _, depth, samples in grid:
        for sample in samples:
            (needle,) = sample.needles
            assert needle.depth == pytest.approx(depth, abs=0.08)


def test_what_is_recorded_says_whose_text_it_is() -> None:
    assert facts("niah_single_2", haystack=HAYSTACK, max_new_tokens=24) == {
        "task": "niah_single_2",
        "wording": "gatebench",
        "haystack": "a poem",
        "max_new_tokens": 24,
        "scoring": "all",
    }
    assert facts("qa_1", haystack=HAYSTACK)["haystack"] is None
    assert facts("niah_single_1", digits=1)["digits"] == 1
    assert "digits" not in facts("niah_single_3", digits=1), "its values are UUIDs"


@pytest.mark.parametrize("name", ["niah_single_1", "niah_multikey_2", "niah_multivalue"])
@pytest.mark.parametrize("digits", [1, 2])
def test_short_numbers_even_where_there_are_fewer_than_needles(name: str, digits: int) -> None:
    for sample in generate(name, encode, 1024, 10, haystack=HAYSTACK, digits=digits):
        values = [re.search(r"is (\d+)\.$", sample.input[needle.start : needle.stop]) for needle in sample.needles]
        assert {value[1] for value in values if value} == set(sample.answers)
        assert all(re.fullmatch(rf"\d{{{digits}}}", answer) for answer in sample.answers)
        others = re.findall(r"The number of \w+ is (\d+)\.", sample.input)
        assert sum(value in sample.answers for value in others) == len(sample.answers), "no other needle says the same"


def test_seven_digits_are_the_default_and_the_most() -> None:
    answers = [answer for sample in generate("niah_multikey_2", encode, 512, 20) for answer in sample.answers]
    assert len(answers) == 20 and all(re.fullmatch(r"\d{7}", answer) for answer in answers)
    for digits in (0, 8):
        with pytest.raises(UserError, match=rf"digits={digits}: numbers in needles have 1 to 7 digits"):
            generate("niah_single_1", encode, 512, 1, digits=digits)
    (*_, samples) = next(iter(depth_grid("niah_single_1", encode, [512], [0.5], 3, digits=2)))
    assert all(re.fullmatch(r"\d\d", sample.answers[0]) for sample in samples)


def test_needles_in_held_out_documents(tiny_corpus: Path) -> None:
    corpus = Corpus.open(tiny_corpus)
    tokenizer = corpus.tokenizer()
    haystack = heldout_haystack(corpus, "literature")
    assert "domain 'literature'" in haystack.name
    assert "moon" in haystack.words

    def with_bos(text: str) -> list[int]:
        return [corpus.bos_id, *tokenizer.encode(text, add_special_tokens=False).ids]

    for sample in generate("niah_multikey_1", with_bos, 768, 3, haystack=haystack):
        assert sample.n_tokens == len(with_bos(sample.input)) <= 768 - 128
        assert len(sample.needles) == 4
