"""Measurements on trained models: sinks, activations, gate scores, interventions."""

FOLDER = "probe"
"""Of a run directory: what `gatebench probe` writes."""
