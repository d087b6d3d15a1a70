"""The sections that say how a run is judged, how much of it may fail, and what is told of it."""

from __future__ import annotations

from pydantic import Field

from driftline.sections.section import Section


class EvaluationParameters(Section):
    """How held-out success is measured."""

    episodes_per_task: int = Field(1, ge=1, description="Episodes of each held-out task.")
    temperature: float = Field(1.0, ge=0, le=2, description="Sampling temperature, 0 is greedy.")


class LimitParameters(Section):
    """How much may fail before the run does. All bounded; an exhausted limit ends the run as Failed."""

    failed_groups: int = Field(64, ge=0, description="Groups given up because too few members were valid.")
    environment_failures: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of an environment's last episodes that it may fail or let run out of time; beyond it none "
        "of its tasks is played any more.",
    )
    environment_episodes: int = Field(256, ge=1, description="So many last episodes, and at least so many.")
    damaged_objects: int = Field(8, ge=0, description="Objects of finished groups that cannot be read.")
    cell_restarts: int = Field(3, ge=0, description="Restarts of a rollout cell that died.")
    trainer_restarts: int = Field(3, ge=0, description="Restarts of a trainer that died.")
    flow_run_restarts: int = Field(
        3, ge=0, description="Restarts of a child flow run (trainer, cell, evaluation) whose process was killed."
    )
    resumptions: int = Field(3, ge=0, description="Resumptions of a run whose parent flow run was killed.")
    batch_deadline_s: float = Field(600.0, gt=0, description="Longest wait for a batch, in seconds.")
    watchdog_s: float = Field(
        600.0, gt=0, description="Seconds without any progress after which a cell that has work is ended."
    )
    lost_threads: int = Field(
        8, ge=0, description="Threads of a cell that environments may hold beyond their deadline at one time."
    )


class TrackingParameters(Section):
    """What goes to MLflow, the report, and Prefect's events."""

    experiment: str = Field("driftline", min_length=1, description="MLflow experiment.")
    registered_model: str = Field(
        "driftline-policy", min_length=1, description="MLflow model that the result is registered as."
    )
    traces_every_steps: int = Field(5, ge=0, description="Steps between two samples of traces; 0 is never.")
    traces_per_sample: int = Field(3, ge=1, description="Episodes in a sample of traces.")
    rollout_gpu_hour_price: float = Field(
        0.0, ge=0, description="Price of a GPU hour of the rollout pool, in any currency; 0 reports no cost."
    )
    train_gpu_hour_price: float = Field(
        0.0, ge=0, description="Price of a GPU hour of the training pool, in any currency; 0 reports no cost."
    )
    batch_regression_share: float = Field(
        0.5, gt=0, description="Growth of the time to a batch over its running median that makes an event."
    )
