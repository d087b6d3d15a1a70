# pyright: basic
"""Requests and results, in our words and in vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from driftline.engine.protocol import Generation, GenerationRequest
from driftline.engine.token_account import Request
from driftline.errors import ConfigurationError
from driftline.records import PolicyVersion, Segment

UNVERSIONED = -1
"""Version number of tokens sampled before the first update, from the model directory's own weights."""


def sampling(request: GenerationRequest) -> Any:
    """VLLM's parameters for one turn.

    Raises:
        ConfigurationError: vLLM does not accept them.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    try:
        return SamplingParams(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            seed=request.seed,
            stop_token_ids=list(request.stop_ids),
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
            skip_reading_prefix_cache=not request.reuse_prefix,
        )
    except Exception as error:
        raise ConfigurationError(f"request {request.id} cannot be sampled: {error}") from None


def scoring() -> Any:
    """VLLM's parameters for the log-probabilities of a prompt; it samples one token besides, which nobody reads."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        prompt_logprobs=0,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


def count_requests(llm: Any, counted: Mapping[str, Request]) -> None:
    """Let each request be counted from its very start, in the state that vLLM keeps of it in this process.

    That state is brought forward by the same call that feeds vLLM's own counter, and outputs of a request that was
    aborted reach neither. It stays readable after vLLM has dropped it.

    Args:
        llm: vLLM's `AsyncLLM`.
        counted: Our counts, by the ids under which requests are handed to vLLM.
    """
    processor = llm.output_processor
    add_request = processor.add_request

    def added(request: Any, *arguments: Any, **named: Any) -> None:
        add_request(request, *arguments, **named)
        if request.external_req_id in counted:
            detokenizer = processor.request_states[request.request_id].detokenizer
            counted[request.external_req_id].sampled = detokenizer.num_output_tokens

    processor.add_request = added


def generation(output: Any, version: PolicyVersion | None) -> Generation:
    """The turn that a finished request of vLLM has sampled; `version` was held when it was submitted."""
    sampled, times = output.outputs[0], output.metrics
    number = UNVERSIONED if version is None else version.number
    spans = [Segment(s.start, int(s.version)) for s in sampled.weight_versions or () if s.end > s.start]
    return Generation(
        token_ids=tuple(sampled.token_ids),
        logprobs=tuple(sampled.logprobs.logprobs),
        segments=tuple(spans) or ((Segment(0, number),) if sampled.token_ids else ()),
        finish_reason=sampled.finish_reason,
        queued_s=max(0.0, times.scheduled_ts - times.queued_ts),
        prefill_s=max(0.0, times.first_token_ts - times.scheduled_ts),
        decode_s=max(0.0, times.last_token_ts - times.first_token_ts),
    )
