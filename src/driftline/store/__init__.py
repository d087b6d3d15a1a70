"""The object store: the only thing that rollout and training share."""
