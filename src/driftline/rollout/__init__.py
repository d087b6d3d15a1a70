"""Sampling trajectories: which group to start (`scheduler`, `assignment`), one episode, and the cell around them.

A cell's process is `python -m driftline.rollout.cell`; held-out tasks are played by `driftline.rollout.evaluate`.
"""
