"""From run directories to tables, statistics and figures. Nothing here imports torch."""
