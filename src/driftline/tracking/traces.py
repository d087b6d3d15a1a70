"""Episodes as MLflow traces that a person can read: turns, tool calls, reward, policy version, log-probability.

`episode_trace` is pure and cheap: the rollout calls it, with the texts that it alone knows, for a few episodes, and
hands the result to `Sink.log_episode`. `write_trace` is what the sink's thread does with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from driftline.environment import Message
from driftline.errors import TrackingUnavailable
from driftline.records import Trajectory

POLICY_ROLE = "assistant"
_NOTHING_WRITTEN = "MLFLOW_NO_OP_SPAN_TRACE_ID"
"""What MLflow's tracing returns, instead of raising, when it fails."""


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """One turn of the policy (`LLM`) or one step of the environment (`TOOL`)."""

    name: str
    kind: Literal["LLM", "TOOL"]
    start_unix: float
    end_unix: float
    inputs: Any
    outputs: Any
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class EpisodeTrace:
    """A whole episode, ready to be written."""

    group: int
    name: str
    start_unix: float
    end_unix: float
    inputs: Any
    outputs: Any
    attributes: Mapping[str, Any]
    spans: tuple[TraceSpan, ...]
    failed: bool


def episode_trace(trajectory: Trajectory, messages: Sequence[Message]) -> EpisodeTrace:
    """Describe an episode for a reader.

    Args:
        trajectory: The episode. Its `request_seconds` alternate between engine request and tool call; where they
            do not match the messages, the turns are spread evenly over the episode.
        messages: All its messages in order, the prompt's first; the policy's have the role `assistant`.
    """
    by_speaker = groupby(messages, key=lambda message: message.role == POLICY_ROLE)
    chunks = [(is_policy, list(part)) for is_policy, part in by_speaker]
    prompt = chunks.pop(0)[1] if chunks and not chunks[0][0] else []
    intervals = _intervals(trajectory, chunks)
    turns = _turn_tokens(trajectory)
    spans: list[TraceSpan] = []
    said: list[Message] = prompt
    for (is_policy, part), (start, end) in zip(chunks, intervals, strict=True):
        turn = sum(span.kind == "LLM" for span in spans)
        if is_policy:
            attributes = turns[turn] if turn < len(turns) else {}
            span = TraceSpan(f"turn {turn}", "LLM", start, end, _texts(said), _joined(part), attributes)
        else:
            span = TraceSpan(f"tool {turn - 1}", "TOOL", start, end, spans[-1].outputs, _texts(part))
        spans.append(span)
        said = part
    return EpisodeTrace(
        group=trajectory.group,
        name=f"group {trajectory.group} member {trajectory.member}",
        start_unix=trajectory.started_unix,
        end_unix=trajectory.finished_unix,
        inputs=_texts(prompt),
        outputs={
            "reward": trajectory.reward,
            **({"reward_parts": dict(trajectory.reward_parts)} if trajectory.reward_parts else {}),
            "success": trajectory.success,
            "status": trajectory.status,
        },
        attributes=_summary(trajectory),
        spans=tuple(spans),
        failed=not trajectory.valid,
    )


def _summary(trajectory: Trajectory) -> dict[str, Any]:
    versions = [segment.version for segment in trajectory.segments]
    return {
        "reward": trajectory.reward,
        "success": trajectory.success,
        "status": trajectory.status,
        "reason": trajectory.reason,
        "task": trajectory.task_id,
        "task_set": trajectory.task_set,
        "environment": trajectory.environment,
        "stratum": trajectory.stratum,
        "group": trajectory.group,
        "member": trajectory.member,
        "attempt": trajectory.attempt,
        "policy_version": max(versions, default=None),
        "policy_versions": versions,
        "turns": trajectory.turns,
        "tokens": len(trajectory.token_ids),
        "sampled_tokens": trajectory.sampled_tokens,
        "mean_logprob_nats": _mean(
            [p for p, own in zip(trajectory.logprobs, trajectory.loss_mask, strict=True) if own]
        ),
    }


def _turn_tokens(trajectory: Trajectory) -> list[dict[str, Any]]:
    """For each unbroken stretch of sampled tokens: how many, their mean log-probability, and who sampled them."""
    turns: list[dict[str, Any]] = []
    start = 0
    for own, run in groupby(trajectory.loss_mask):
        end = start + len(list(run))
        if own:
            logprobs = list(trajectory.logprobs[start:end])
            versions = _versions(trajectory, start, end)
            turns.append({"tokens": end - start, "mean_logprob_nats": _mean(logprobs), "policy_versions": versions})
        start = end
    return turns


def _versions(trajectory: Trajectory, start: int, end: int) -> list[int]:
    """Policy versions that sampled tokens of `[start, end)`."""
    ends = [segment.start for segment in trajectory.segments[1:]] + [len(trajectory.token_ids)]
    pairs = zip(trajectory.segments, ends, strict=False)
    return sorted({segment.version for segment, upto in pairs if segment.start < end and upto > start})


def _intervals(trajectory: Trajectory, chunks: Sequence[tuple[bool, list[Message]]]) -> list[tuple[float, float]]:
    """(start, end) in Unix seconds of each chunk of messages that follows the prompt."""
    count, measured = len(chunks), list(trajectory.request_seconds)
    if count and chunks[0][0] and count <= len(measured) <= count + 1:
        return measured[:count]
    start, length = trajectory.started_unix, trajectory.finished_unix - trajectory.started_unix
    return [(start + length * i / count, start + length * (i + 1) / count) for i in range(count)]


def _texts(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _joined(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def write_trace(client: Any, run_id: str, episode: EpisodeTrace) -> str:
    """Write an episode as a trace linked to the MLflow run; returns the trace's id.

    Args:
        client: An `MlflowClient`.
        run_id: The run, in whose experiment the trace appears.
        episode: What `episode_trace` returned.

    Raises:
        TrackingUnavailable: MLflow wrote nothing; its own log says why.
    """
    experiment = client.get_run(run_id).info.experiment_id
    root = client.start_trace(
        episode.name,
        span_type="AGENT",
        inputs=episode.inputs,
        attributes=dict(episode.attributes),
        tags={
            f"driftline.{key}": str(episode.attributes[key])
            for key in ("status", "group", "policy_version", "reward")
        },
        experiment_id=experiment,
        start_time_ns=_nanoseconds(episode.start_unix),
        run_id=run_id,
    )
    if root.trace_id == _NOTHING_WRITTEN:
        raise TrackingUnavailable(f"MLflow did not start a trace for {episode.name}: see its warning above")
    for part in episode.spans:
        span = client.start_span(
            part.name,
            trace_id=root.trace_id,
            parent_id=root.span_id,
            span_type=part.kind,
            inputs=part.inputs,
            attributes=dict(part.attributes),
            start_time_ns=_nanoseconds(part.start_unix),
        )
        client.end_span(root.trace_id, span.span_id, outputs=part.outputs, end_time_ns=_nanoseconds(part.end_unix))
    client.end_trace(
        root.trace_id,
        outputs=episode.outputs,
        status="ERROR" if episode.failed else "OK",
        end_time_ns=_nanoseconds(episode.end_unix),
    )
    return root.trace_id


def _nanoseconds(unix: float) -> int:
    return int(unix * 1e9)
