"""The model card (`README.md`) of a trained policy's directory. Pure."""

from __future__ import annotations

from driftline.records import RunDescription
from driftline.tracking.report import Report


def model_card(report: Report, description: RunDescription, *, license_name: str = "apache-2.0") -> str:
    """The card's text: what the policy is, how it was trained, how it did, and how to load it.

    Args:
        report: The run's report.
        description: What the run is.
        license_name: Licence of the weights, by its Hugging Face name.
    """
    parameters = description.parameters
    environment = parameters.get("environment", {}).get("id", "not recorded")
    by_environment = "".join(
        f"\n| Held-out success in `{name}`, before and after "
        f"| {_share(one.held_out_base)}, {_share(one.held_out_final)} |"
        for name, one in report.environments.items()
        if len(report.environments) > 1
    )
    return f"""---
library_name: transformers
pipeline_tag: text-generation
license: {license_name}
tags: [driftline, reinforcement-learning]
---

# Policy of run `{report.run}`

Trained by asynchronous reinforcement learning with Driftline {description.code_version}, for {report.summary.steps}
optimizer steps on tasks of `{environment}`.

| | |
|---|---|
| Base model | {description.model.description or "model directory"} (`{description.model.digest}`) |
| Task set | `{description.task_set}` |
| Held-out task set | `{description.held_out_task_set}` |
| Optimizer steps | {report.summary.steps} |
| Held-out success before | {_share(report.held_out_success_base)} |
| Held-out success after | {_share(report.held_out_success_final)} |{by_environment}
| Divergence while training, k3 | {_number(report.summary.k3_nats, " nats")} |
| Effective sample size | {_share(report.summary.ess_fraction)} |
| Lag in policy versions, mean | {_number(report.summary.lag_steps_mean)} |
| Lag in policy versions, max | {_number(report.summary.lag_steps_max)} |
| MLflow run | {description.mlflow_run or "none"} |
| Stored at | {report.store} |

Held-out success is measured by sampling; the divergence is between the policy that sampled a token and the one that
was trained on it, before any correction.

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("PATH_OF_THIS_DIRECTORY")
tokenizer = AutoTokenizer.from_pretrained("PATH_OF_THIS_DIRECTORY")
```

```python
from vllm import LLM, SamplingParams

engine = LLM("PATH_OF_THIS_DIRECTORY")
outputs = engine.generate(["..."], SamplingParams(temperature=1.0, max_tokens=16))
```

Prompts must be rendered as in training (`model.rendering: {parameters.get("model", {}).get("rendering", "plain")}`).
"""


def _share(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"


def _number(value: float | None, unit: str = "") -> str:
    return "not measured" if value is None else f"{value:.3g}{unit}"
