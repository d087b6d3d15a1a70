"""`reasoning_gym/<dataset>/v1`: the datasets of reasoning-gym (an extra) as environments, scored exactly.

Four of them are played move by move as well: `reasoning_gym/maze_steps/v1` and so on.
"""

from __future__ import annotations

from driftline.environment import TaskFamily
from environments.reasoning_gym.datasets import LEVELS, STEPPED
from environments.reasoning_gym.questions import GradedQuestions, Questions
from environments.reasoning_gym.steps.family import Steps

__all__ = ["FAMILIES", "GradedQuestions", "Questions", "Steps"]

FAMILIES: tuple[TaskFamily, ...] = (
    *(GradedQuestions(dataset) if levels else Questions(dataset) for dataset, levels in LEVELS.items()),
    *(Steps(dataset) for dataset in STEPPED),
)
