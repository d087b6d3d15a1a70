"""`repo_repair/v1`: find and mend a fault in a small repository, by reading, editing and running tests."""

from environments.repo_repair.family import RepoRepair

__all__ = ["RepoRepair"]
