"""One run, start to finish: Lightning module, data module, callbacks, run directory."""
