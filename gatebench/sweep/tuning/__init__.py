"""Tuning a study's variants: one search of Optuna each, over trials that are ordinary runs (docs/tuning.md)."""
