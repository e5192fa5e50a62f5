"""A run at windows longer than its own: loss by position, sinks, RULER, needles by depth (docs/long_context.md)."""

FOLDER = "long"
"""Of a run directory: the results, a file a condition."""
