"""Planning and launching runs: every run is a subprocess of the command that a user would type."""
