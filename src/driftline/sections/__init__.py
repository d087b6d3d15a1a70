"""The sections of a run's parameters, one subject a module; `driftline.params` puts them together."""
