"""What the tests of RULER share: a tokenizer that needs no training, running text, and small question files."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

from gatebench.evaluation.ruler import TASKS, Haystack, Sample, generate

PIECE = re.compile(r" ?\w{1,3}| ?[^\w\s]|\s")
"""About the tokens of a small BPE: up to three characters of a word."""

DOWNLOAD_FREE = ("niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe")
IN_TEXT = ("niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery")

_ids: dict[str, int] = {}
_pieces: list[str] = []


def encode(text: str) -> list[int]:
    """Return the ids of the pieces of `text`; 0 stands before them, as BOS would."""
    ids = [0]
    for piece in PIECE.findall(text):
        if piece not in _ids:
            _pieces.append(piece)
            _ids[piece] = len(_pieces)
        ids.append(_ids[piece])
    return ids


def decode(ids: list[int]) -> str:
    """Return the text of ids that `encode` gave."""
    return "".join(_pieces[i - 1] for i in ids if i)


def running_text(n_words: int = 3000) -> Haystack:
    """Return sentences of about ten words."""
    rng = random.Random(0)
    words = rng.choices("sea moon night heart weep light upon silver sleep tide and the of in".split(), k=n_words)
    return Haystack("a poem", tuple(f"{word}." if rng.random() < 0.1 else word for word in words))


HAYSTACK = running_text()


def question_files(folder: Path) -> dict[str, Path]:
    """Write eight questions in the forms of SQuAD 2.0 and HotpotQA and return the files by task."""
    towns = ["Aven", "Brix", "Colm", "Dorn", "Elst", "Fyll", "Gorm", "Hyde"]
    text = {town: f"The mayor of {town} is called Mr {town[::-1]}son, and nobody else is." for town in towns}
    squad = [
        {
            "paragraphs": [
                {
                    "context": text[town],
                    "qas": [
                        {
                            "question": f"Who is the mayor of {town}?",
                            "answers": [{"text": f"{town[::-1]}son"}, {"text": f"Mr {town[::-1]}son"}],
                            "is_impossible": False,
                        },
                        {"question": "Who is the queen?", "answers": [], "is_impossible": True},
                    ],
                }
                for town in pair
            ]
        }
        for pair in zip(towns[::2], towns[1::2], strict=True)
    ]
    hotpot = [
        {
            "question": f"Who is the mayor of {town}?",
            "answer": f"{town[::-1]}son",
            "context": [[town, ["A town. ", text[town]]], [f"{town} river", ["A river."]]],
        }
        for town in towns
    ]
    files = {"qa_1": folder / "squad.json", "qa_2": folder / "hotpot.json"}
    files["qa_1"].write_text(json.dumps({"data": squad}), encoding="utf-8")
    files["qa_2"].write_text(json.dumps(hotpot), encoding="utf-8")
    return files


def samples_of(name: str, length: int, n: int, folder: Path, **settings: object) -> list[Sample]:
    """Return samples with what the task needs."""
    needs = TASKS[name].needs
    return generate(
        name,
        encode,
        length,
        n,
        haystack=HAYSTACK if needs == "haystack" else None,
        qa_file=question_files(folder)[name] if needs == "qa_file" else None,
        **settings,  # type: ignore[arg-type]
    )
