"""The trainer: from finished groups to the next policy version.

    advantages, losses, packing, batching   pure
    trainer, gather, checkpoints            DeepSpeed
    loop, entry                             rank 0's wire to the store, and the process
    base_model, warm_start                  where the first policy comes from

This package's `__init__` and `base_model` import no torch.
"""
