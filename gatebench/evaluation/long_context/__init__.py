"""A run at windows longer than its own: loss by position, sinks, RULER, needles by depth (docs/long_context.md)."""

from gatebench.evaluation.long_context.positions import Loss, by_position, heldout_pieces, token_losses, windows_of
from gatebench.evaluation.long_context.run_long import Request, measure

__all__ = ["Loss", "Request", "by_position", "heldout_pieces", "measure", "token_losses", "windows_of"]
