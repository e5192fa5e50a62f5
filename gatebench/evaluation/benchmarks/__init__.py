"""Benchmarks: the lm-eval harness around one of our models, and a suite of our own that needs no network."""
