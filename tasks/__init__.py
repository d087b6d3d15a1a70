"""Prefect tasks: names, retries, timeouts and artifacts around plain functions of the library."""
