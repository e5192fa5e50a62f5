"""Figures, one module each."""
