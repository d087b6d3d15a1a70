"""How far the generating policy is from the trained one, and what is done about it. Pure; torch only.

- `estimators`: divergence of two policies, from the log-probabilities of tokens that one of them sampled.
- `corrections`: importance weights, truncated or masked.
- `age`: lag in versions, split into the part spent in flight and the part spent in the queue.
"""
