"""How far the generating policy is from the trained one, and what is done about it. Pure; torch only.

- `estimators`: divergence of two policies, from the log-probabilities of tokens that one of them sampled.
- `trajectories`: the same for one trajectory, and by lag or environment.
- `corrections`: importance weights, truncated or masked.
- `age`: lag in versions, split into the part spent in flight and the part spent in the queue.
- `admission`: which trajectories are trained on, and with what weight.
- `overlap`: how far generation may run ahead, from a divergence budget.
- `diagnosis`: why engine and trainer disagree.

Formulas, sources and defaults: docs/divergence.md.
"""
