"""Asynchronous RL post-training for LLM agents: everything that is true without Prefect."""

__version__ = "0.1.0"
