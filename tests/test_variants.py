"""The grammar, the registry and their messages."""

from __future__ import annotations

import csv
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatebench import variants
from gatebench.errors import UserError
from gatebench.gatespec import GateSpec, factorial, parse_gate
from gatebench.paper import TABLES
from gatebench.paths import project_root
from gatebench.variants import Variant, get, registry, select

ACTIVATION_WORDS = ("", "_silu", "_ns_sigmoid", "_identity", "_tanh", "_relu")


def legal_words() -> list[str]:
    """Return every word of the grammar's part for the paper's gates; for the rest see test_gatespec.py."""
    words = [f"g{n}_{transform}" for n in range(1, 6) for transform in ("rmsnorm", "silu_only")]
    for n, granularity, shared, additive, activation, constant in itertools.product(
        range(1, 6),
        ("headwise", "elementwise"),
        ("", "_shared"),
        ("", "_additive"),
        ACTIVATION_WORDS,
        ("", "_input_independent"),
    ):
        no_heads = n == 5 and (granularity == "headwise" or shared)
        never_moves = activation == "_relu" and constant
        if not no_heads and not never_moves:
            words.append(f"g{n}_{granularity}{shared}{additive}{activation}{constant}")
    return words


LEGAL = legal_words()


def test_the_papers_grammar_has_384_words() -> None:
    # Per position of g1..g4: 2 x 2 x 2 x 11 scores; g5: 2 x 11; and two transforms at each of five positions.
    assert len(LEGAL) == len(set(LEGAL)) == 4 * 88 + 22 + 10 == 384


@pytest.mark.parametrize("word", LEGAL)
def test_every_word_round_trips_and_is_a_variant(word: str) -> None:
    gate = parse_gate(word)
    assert gate.name == word
    assert parse_gate(gate.name) == gate
    variant = get(word)
    assert (variant.name, variant.gates) == (word, (gate,))
    assert variant.label
    assert variant.reason
    assert gate.equation.startswith(f"{'YVKQO'[int(word[1]) - 1]}")


def test_a_word_says_all_about_its_gate() -> None:
    assert parse_gate("g1_headwise") == GateSpec("g1", "headwise", False, "multiplicative", "sigmoid", "hidden")
    assert parse_gate("g2_elementwise_shared_additive_ns_sigmoid_input_independent") == GateSpec(
        "g2", "elementwise", True, "additive", "sigmoid", "constant", floor=0.5
    )
    assert parse_gate("g3_rmsnorm") == GateSpec("g3", "elementwise", False, "transform", "rmsnorm", "self")


@pytest.mark.parametrize(
    ("name", "equation", "score_shape"),
    [
        ("g1_headwise", "Y_h' = Y_h ⊙ σ(X W_θ,h)", "n x q"),
        ("g1_elementwise", "Y_h' = Y_h ⊙ σ(X W_θ,h)", "n x q x dk"),
        ("g2_headwise", "V_h' = V_h ⊙ σ(X W_θ,h)", "n x k"),
        ("g3_elementwise", "K_h' = K_h ⊙ σ(X W_θ,h)", "n x k x dk"),
        ("g4_headwise", "Q_h' = Q_h ⊙ σ(X W_θ,h)", "n x q"),
        ("g5_elementwise", "O' = O ⊙ σ(X W_θ)", "n x dmodel"),
        ("g1_elementwise_shared", "Y_h' = Y_h ⊙ mean_h σ(X W_θ,h)", "n x dk"),
        ("g2_headwise_shared_silu", "V_h' = V_h ⊙ mean_h SiLU(X W_θ,h)", "n x 1"),
        ("g1_elementwise_additive_silu", "Y_h' = Y_h + SiLU(X W_θ,h)", "n x q x dk"),
        ("g1_elementwise_additive_identity", "Y_h' = Y_h + (X W_θ,h)", "n x q x dk"),
        ("g1_elementwise_ns_sigmoid", "Y_h' = Y_h ⊙ (0.5 + 0.5·σ(X W_θ,h))", "n x q x dk"),
        ("g1_elementwise_input_independent", "Y_h' = Y_h ⊙ σ(θ_h)", "q x dk"),
        ("g1_rmsnorm", "Y_h' = RMSNorm(Y_h)", "none"),
        ("g5_silu_only", "O' = SiLU(O)", "none"),
    ],
)
def test_equations_and_score_shapes(name: str, equation: str, score_shape: str) -> None:
    gate = parse_gate(name)
    assert (gate.equation, gate.score_shape) == (equation, score_shape)


def test_sharing_before_the_activation_has_an_equation_of_its_own() -> None:
    gate = GateSpec("g1", "headwise", shared=True, shared_average="logits")
    assert gate.equation == "Y_h' = Y_h ⊙ σ(mean_h X W_θ,h)"


# --- registry


def paper_rows() -> list[tuple[int, int, str, str]]:
    """Return (table, row, name, score shape or "") of the paper's Tables 1 to 6, of each variant its first row."""
    rows: dict[tuple[int, str], tuple[int, int, str, str]] = {}
    for table in (1, 2, 3, 4, 5, 6):
        with (project_root() / "results" / "paper" / TABLES[table]).open(encoding="utf-8") as lines:
            for number, row in enumerate(csv.DictReader(lines), start=1):
                found = (table, number, row["variant"], row.get("score_shape") or "")
                rows.setdefault((table, row["variant"]), found)
    return list(rows.values())


PAPER_ROWS = paper_rows()
FACTORIAL = {cell.name for cell in factorial()}


def test_the_papers_tables_hold_41_variants_and_table_2_and_5_repeat_some() -> None:
    assert [sum(row[0] == table for row in PAPER_ROWS) for table in (1, 2, 3, 4, 5, 6)] == [15, 4, 7, 7, 2, 6]


@pytest.mark.parametrize(("table", "row", "name", "score_shape"), PAPER_ROWS)
def test_every_row_of_the_paper_is_a_variant_with_its_place(table: int, row: int, name: str, score_shape: str) -> None:
    variant = get(name)
    assert variant.tables[table] == row
    assert registry()[variant.name] is variant
    assert name in (variant.name, *variant.aliases)
    if score_shape:
        assert [gate.score_shape for gate in variant.gates] == [score_shape]


def test_tables_hold_nothing_else() -> None:
    tagged = {(table, row) for variant in registry().values() for table, row in variant.tables.items()}
    assert tagged == {(table, row) for table, row, _, _ in PAPER_ROWS}


def test_the_factorial_has_68_cells() -> None:
    cells = list(factorial())
    assert len(cells) == len(set(cells)) == 80 - 12 == 68
    assert [cell.name for cell in cells if cell.position == "g5"] == [
        "g5_elementwise",
        "g5_elementwise_silu",
        "g5_elementwise_additive",
        "g5_elementwise_additive_silu",
    ]
    assert {cell.name for cell in cells} <= registry().keys()


def test_the_registry_lists_curated_variants_first_and_then_57_cells_of_the_factorial() -> None:
    assert len(registry()) == len(variants.CURATED) + 57 >= 100
    assert list(registry())[: len(variants.CURATED)] == [variant.name for variant in variants.CURATED]
    assert next(iter(registry())) == "baseline"


def test_names_are_canonical_and_unique() -> None:
    names = variants.all_names()
    assert len(names) == len(set(names))
    for name, variant in registry().items():
        assert name == variant.name
        if variant.gates:
            assert "+".join(gate.name for gate in variant.gates) == name


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("g1_additive_silu", "g1_elementwise_additive_silu"),
        ("g1_additive_identity", "g1_elementwise_additive_identity"),
        ("g1_input_independent", "g1_elementwise_input_independent"),
    ],
)
def test_aliases_share_the_canonical_name_and_so_the_runs(alias: str, name: str) -> None:
    assert get(alias) is get(name)
    assert get(alias).name == name
    assert get(f"{alias}+g2_headwise").name == f"{name}+g2_headwise"


def test_a_name_registered_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    clash = Variant("mine", (parse_gate("g2_elementwise"),), group="position", aliases=("g1_additive_silu",))
    monkeypatch.setattr(variants, "CURATED", (*variants.CURATED, clash))
    with pytest.raises(ValueError, match="'g1_additive_silu' is registered twice"):
        registry.__wrapped__()


def test_one_entry_adds_a_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Variant("g4_rmsnorm", (parse_gate("g4_rmsnorm"),), label="q RMSNorm", group="nonlinearity", tables={3: 8})
    monkeypatch.setattr(variants, "CURATED", (*variants.CURATED, mine))
    registry.cache_clear()
    try:
        assert get("g4_rmsnorm") is mine
        assert select("table:3")[-1] is mine
        assert mine in select("group:nonlinearity")
        assert mine in select("g4_*")
    finally:
        registry.cache_clear()


# --- combinations


@given(st.lists(st.sampled_from(LEGAL), min_size=2, max_size=4, unique=True))
def test_combinations_are_canonical(words: list[str]) -> None:
    variant = get("+".join(words))
    assert get(variant.name) == variant
    assert sorted(gate.name for gate in variant.gates) == sorted(words)
    positions = [gate.position for gate in variant.gates]
    assert positions == sorted(positions)


def test_the_order_of_parts_at_different_sites_does_not_matter() -> None:
    one, other = get("g1_headwise+g2_headwise"), get("g2_headwise + g1_headwise")
    assert one == other
    assert one.label == "SDPA Headwise G1 + v Headwise G2"


def test_the_order_of_gates_at_one_site_is_the_order_in_which_they_act() -> None:
    variant = get("g2_headwise+g1_elementwise+g1_headwise")
    assert variant.name == "g1_elementwise+g1_headwise+g2_headwise"
    assert [gate.name for gate in variant.at("g1")] == ["g1_elementwise", "g1_headwise"]
    assert [gate.name for gate in variant.at("g2")] == ["g2_headwise"]
    assert variant.at("g5") == ()


def test_gates_combine_with_overrides() -> None:
    variant = get("g1_rmsnorm+kv_heads_x2")
    assert variant.name == "kv_heads_x2+g1_rmsnorm"
    assert {key: float(ratio) for key, ratio in variant.ratios.items()} == {"n_kv_heads": 2.0}
    assert get("q_heads_x1p5+kv_heads_x2").name == "kv_heads_x2+q_heads_x1p5"


# --- refusals


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("g1_hedwise", ["variant 'g1_hedwise'", "did you mean g1_headwise", "grammar: g{1..5}_"]),
        ("g6_headwise", ["variant 'g6_headwise'", "g4_headwise"]),
        ("G1_headwise", ["variant 'G1_headwise'", "g1_headwise"]),
        ("g1_headwise_additive_shared", ["variant 'g1_headwise_additive_shared'", "did you mean g1_headwise_additive"]),
        ("g1_elementwise_sigmoid", ["did you mean", "g1_elementwise"]),
        ("g1_rmsnorm_shared", ["did you mean g1_rmsnorm"]),
        ("g5_headwise", ["g5_headwise", "has mixed the heads", "legal: g5_elementwise", "g5_rmsnorm"]),
        ("g5_elementwise_shared", ["g5_elementwise_shared", "has mixed the heads"]),
        (
            "g1_headwise_relu_input_independent",
            ["θ starts at 0", "never move", "legal with input_independent: sigmoid"],
        ),
        ("sandwich_nrm", ["variant 'sandwich_nrm'", "unknown"]),
        ("", ["variant ''"]),
        ("g1_headwise+", ["variant ''"]),
        ("g1_headwise+g1_headwise", ["g1_headwise stands twice"]),
        ("g1_additive_silu+g1_elementwise_additive_silu", ["g1_elementwise_additive_silu stands twice"]),
        ("kv_heads_x2+kv_heads_x2", ["n_kv_heads is overridden twice"]),
        ("baseline+g1_headwise", ["baseline has nothing to combine"]),
    ],
)
def test_an_illegal_name_is_refused_in_one_line(name: str, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        get(name)
    message = str(error.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"position": "g6"}, ["GateSpec.position='g6'", "g1, g2, g3, g4, g5"]),
        ({"position": "g1", "granularity": "rowwise"}, ["'rowwise'", "headwise, elementwise"]),
        ({"position": "g1", "mode": "divisive"}, ["'divisive'", "multiplicative, additive, transform"]),
        ({"position": "g1", "activation": "gelu"}, ["'gelu'", "sigmoid, silu"]),
        ({"position": "g1", "source": "self"}, ["'self'", "hidden, constant, previous, value"]),
        ({"position": "g1", "mode": "transform", "activation": "sigmoid", "source": "self"}, ["rmsnorm, silu_only"]),
        (
            {"position": "g1", "mode": "transform", "activation": "rmsnorm", "source": "self", "shared": True},
            ["rmsnorm acts on elements"],
        ),
    ],
)
def test_an_illegal_spec_is_refused(fields: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        GateSpec(**fields)  # type: ignore[arg-type]
    assert [word for word in words if word not in str(error.value)] == []


# --- selection


def test_a_table_selects_its_rows_in_the_papers_order() -> None:
    assert [variant.name for variant in select("table:4")] == [
        "baseline",
        "g1_elementwise",
        "g1_headwise",
        "g1_elementwise_shared",
        "g2_elementwise",
        "g1_elementwise_input_independent",
        "g1_elementwise_ns_sigmoid",
    ]
    assert [len(select(f"table:{table}")) for table in (1, 2, 3, 4, 5, 6)] == [15, 4, 7, 7, 2, 6]


def test_globs_groups_and_names_select() -> None:
    assert [variant.name for variant in select("g5*")] == [
        "g5_elementwise",
        "g5_elementwise_silu",
        "g5_elementwise_additive",
        "g5_elementwise_additive_silu",
    ]
    assert [variant.name for variant in select("group:factorial")] == [v for v in registry() if v in FACTORIAL]
    assert [variant.name for variant in select("group:sharing")] == ["g1_elementwise_shared", "g2_elementwise_shared"]
    assert select("g1_additive_silu") == [get("g1_elementwise_additive_silu")]
    assert select("g1_elementwise_tanh")[0].name == "g1_elementwise_tanh"
    assert select("g1_headwise+g2_headwise")[0].name == "g1_headwise+g2_headwise"


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("table:7", ["table '7'", "legal: 1, 2, 3, 4, 5, 6"]),
        ("table:one", ["table 'one'", "legal: 1, 2, 3, 4, 5, 6"]),
        ("group:sharin", ["group 'sharin'", "did you mean sharing"]),
        ("g9_*", ["pattern 'g9_*'", "matches no registered variant"]),
        ("g1_hedwise", ["variant 'g1_hedwise'", "did you mean"]),
    ],
)
def test_a_selection_of_nothing_is_refused(pattern: str, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        select(pattern)
    assert [word for word in words if word not in str(error.value)] == []
