# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""What vLLM's CPU build needs before TRL can load weights into it."""

from __future__ import annotations


def keep_weights_loadable():
    """Have vLLM's CPU layers keep their weights as they are.

    The CPU build packs the weights of linear layers when it starts, and drops them: TRL, which calls `load_weights`
    after every step, would fail on the first.
    """
    import torch
    import vllm.model_executor.layers.utils as layers

    def keep(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    layers.dispatch_cpu_unquantized_gemm = keep
