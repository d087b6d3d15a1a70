"""A batch of groups as flat tensors: what every rank needs for one optimizer step, and nothing else.

Only valid members are in it, in the order of (group, member). Advantages come from all valid members of a group,
before admission; the weight of a member scales its own advantage alone, so no baseline depends on who is admitted.
Tensors travel between ranks as they are; no pickle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain

import torch
from torch import Tensor

from driftline.records import Group, Trajectory
from driftline.training.advantages import group_advantages
from driftline.training.losses import sequence_weights
from driftline.training.segments import span_lags


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """`N` sequences with `S` tokens in all, one after the other."""

    token_ids_S: Tensor
    """int64."""
    sampled_S: Tensor
    """bool: the policy sampled the token. False for the first token of each sequence, which nothing precedes."""
    behaviour_S: Tensor
    """float64: log-probability as sampled, nats; 0.0 where not sampled."""
    lag_S: Tensor
    """int64: versions between the one that sampled the token and the one trained from; 0 where not sampled."""
    lengths_N: Tensor
    """int64."""
    advantages_N: Tensor
    """float64, the member's weight included; a sequence with 0 is scored, not trained on."""
    weights_N: Tensor
    """float64: what one sampled token of the sequence weighs in the loss."""

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return self.lengths_N.numel()

    def tensors(self) -> list[Tensor]:
        """The tensors in the order of the fields."""
        return [getattr(self, field.name) for field in fields(self)]


DTYPES = (torch.int64, torch.bool, torch.float64, torch.int64, torch.int64, torch.float64, torch.float64)
"""Of `TrainingBatch.tensors()`."""
TOKEN_FIELDS = 4
"""How many of the tensors, from the first on, have one entry a token; the others have one a sequence."""


MemberWeights = Sequence[float | None]
"""What each member's advantage is multiplied by, in the group's order; None: it is in no batch and no statistic."""


def assemble(
    groups: Sequence[Group],
    weights: Mapping[int, MemberWeights],
    *,
    version: int,
    advantage: str,
    aggregation: str,
    constant: float,
) -> TrainingBatch:
    """Make the batch of some groups; a pure function of its arguments.

    Args:
        groups: Finished groups, in the order of their use.
        weights: Group number -> weights of its members.
        version: Number of the policy version trained from.
        advantage: Name of the group baseline.
        aggregation: How token losses become one loss.
        constant: Tokens, for the aggregation `constant`.

    Raises:
        ValueError: No group has a member with a weight.
    """
    members: list[Trajectory] = []
    advantages: list[float] = []
    for group in groups:
        weighed = zip(group.trajectories, weights[group.number], strict=True)
        counted = [(member, weight) for member, weight in weighed if weight is not None]
        rewards_G = torch.tensor([member.reward for member, _ in counted], dtype=torch.float64)
        weights_G = torch.tensor([weight for _, weight in counted], dtype=torch.float64)
        advantages_G = group_advantages(rewards_G, torch.ones(len(counted)), advantage) * weights_G
        members += [member for member, _ in counted]
        advantages += [float(value) for value in advantages_G]
    if not members:
        raise ValueError("no group of the batch has a valid member")
    sampled = [_trainable(member) for member in members]
    return TrainingBatch(
        token_ids_S=torch.tensor([*chain.from_iterable(member.token_ids for member in members)]),
        sampled_S=torch.tensor([*chain.from_iterable(sampled)]),
        behaviour_S=torch.tensor([*chain.from_iterable(m.logprobs for m in members)], dtype=torch.float64),
        lag_S=_lags(members, version),
        lengths_N=torch.tensor([len(member.token_ids) for member in members]),
        advantages_N=torch.tensor(advantages, dtype=torch.float64),
        weights_N=sequence_weights(torch.tensor([sum(flags) for flags in sampled]), aggregation, constant),
    )


def weights_of_valid(group: Group, weight: float = 1.0) -> MemberWeights:
    """The same weight for all valid members of a group."""
    return tuple(weight if member.valid else None for member in group.trajectories)


def _lags(members: Sequence[Trajectory], version: int) -> Tensor:
    """Lags of all tokens, one member after the other; 0 where a token was not sampled."""
    mask_S = torch.tensor([*chain.from_iterable(member.loss_mask for member in members)])
    return torch.tensor([*chain.from_iterable(span_lags(member, version) for member in members)]) * mask_S


def _trainable(member: Trajectory) -> list[bool]:
    """The loss mask, without a first token, whose probability has no context."""
    return [False, *member.loss_mask[1:]]
