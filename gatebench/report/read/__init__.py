"""Read finished runs, committed frames and probes."""
