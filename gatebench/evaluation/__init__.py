"""Measurements on a trained model: perplexity per domain and probes."""
