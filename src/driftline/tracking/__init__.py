"""What is measured, and where it goes: metric names, MLflow, the timeline and the report.

`metrics` is the one table of metric names. `critical_path`, `timeline` and `summary` are pure. Only `sink`,
`mlflow_run` and `traces` talk to MLflow, and they import it when they are used: it takes seconds.
"""
