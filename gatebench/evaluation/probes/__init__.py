"""Measurements on trained models: sinks, activations, gate scores, interventions."""
