from __future__ import annotations

from gatebench.data.split import Candidate, choose_heldout, heldout_shares


def test_share_is_what_gives_the_target_within_bounds() -> None:
    candidates = [Candidate(f"{d}{i}", "s", d, 1000) for d, n in (("big", 1000), ("small", 10)) for i in range(n)]
    assert heldout_shares(candidates, 50_000, (0.01, 0.10)) == {"big": 0.05, "small": 0.10}


def test_each_source_gives_its_share() -> None:
    candidates = [Candidate(f"{s}{i}", s, "english", 100) for s in ("a", "b") for i in range(200)]
    chosen = choose_heldout(candidates, {"english": 0.05})
    assert len([k for k in chosen if k.startswith("a")]) == 10
    assert len([k for k in chosen if k.startswith("b")]) == 10


def test_choice_depends_on_keys_alone() -> None:
    candidates = [Candidate(f"k{i}", "s", "d", 100) for i in range(100)]
    assert choose_heldout(candidates, {"d": 0.1}) == choose_heldout(candidates[::-1], {"d": 0.1})


def test_a_long_document_does_not_fill_the_heldout_set() -> None:
    candidates = [Candidate("long", "s", "d", 50_000), *(Candidate(f"k{i}", "s", "d", 500) for i in range(100))]
    chosen = choose_heldout(candidates, {"d": 0.05})
    assert "long" not in chosen
    assert len(chosen) == 10


def test_few_documents_leave_one_on_each_side() -> None:
    pair = [Candidate("a", "s", "d", 100), Candidate("b", "s", "d", 200)]
    assert choose_heldout(pair, {"d": 0.1}) == {"a"}
    assert choose_heldout(pair[:1], {"d": 0.1}) == set()
