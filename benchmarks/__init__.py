"""What Driftline claims, measured: each benchmark prints a table and takes `--json PATH`."""
