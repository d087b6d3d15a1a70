"""What a user of TRL writes for `pointer_chase/v1`, run by the Python of TRL's own environment.

| file | what it is |
|---|---|
| `settings.py` | the policy, its chat format, the data set, `GRPOConfig` |
| `environment_factory.py` | TRL plays: an environment class whose methods are tools |
| `rollout_func.py` | the user plays: all episodes a turn at a time, their tools at once |
| `cached_turns.py` | turns by transformers, with one KV cache over all turns of an episode |
| `vllm_turns.py` | turns by the vLLM that TRL has in its process |
| `vllm_on_processors.py` | what vLLM's CPU build needs before TRL can load weights into it |
| `measured.py`, `evaluate.py` | the benchmark's own: what is asked for, the clock, weights, held-out success |

`requirements.lock` is TRL's environment; `benchmarks.against_trl` makes it. The game itself is the same code as
Driftline's (`environments/pointer_chase`).
"""


def weights_name(step: int) -> str:
    """File of the weights after a step; its stem is the step."""
    return f"{step}.safetensors"
