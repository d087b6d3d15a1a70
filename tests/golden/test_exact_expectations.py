"""What is unbiased for what: expectations over small categorical policies, by enumeration and not by sampling.

Policies speak three tokens, one or two of them in a sequence; a state is what was said before. "Unbiased" is
equality with the exact quantity to rounding, "biased" a difference of at least a hundredth of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from driftline.divergence import estimators
from driftline.divergence.corrections import Correction
from driftline.training.advantages import group_advantages
from driftline.training.objective import ObjectiveChoice, SampledTokens, token_objective

VOCABULARY = 3
UNBIASED, BIASED = 1e-9, 1e-2


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


BEHAVIOUR, CURRENT = f64(0.5, 0.3, 0.2), f64(0.2, 0.3, 0.5)
LOG_RATIO = CURRENT.log() - BEHAVIOUR.log()


def expectation(values: Tensor) -> float:
    return float((BEHAVIOUR * values).sum())


def test_k1_and_k3_are_unbiased_for_the_kl_and_k2_is_not():
    exact = float(estimators.exact_kl(BEHAVIOUR, CURRENT))
    assert expectation(estimators.k1(LOG_RATIO)) == pytest.approx(exact, abs=UNBIASED)
    assert expectation(estimators.k3(LOG_RATIO)) == pytest.approx(exact, abs=UNBIASED)
    assert abs(expectation(estimators.k2(LOG_RATIO)) - exact) > BIASED * exact


def test_the_spread_of_k3_is_below_that_of_k1():
    k1, k3 = estimators.k1(LOG_RATIO), estimators.k3(LOG_RATIO)
    variances = [expectation(k.square()) - expectation(k) ** 2 for k in (k1, k3)]
    assert variances[1] < variances[0] / 3


def test_total_variation_and_chi_square_are_unbiased():
    ratio = estimators.ratio(LOG_RATIO)
    exact = estimators.exact_total_variation(BEHAVIOUR, CURRENT)
    assert expectation((ratio - 1).abs() / 2) == pytest.approx(float(exact), abs=UNBIASED)
    exact = estimators.exact_chi_square(BEHAVIOUR, CURRENT)
    assert expectation(ratio.square() - 1) == pytest.approx(float(exact), abs=UNBIASED)


def test_without_common_support_only_k1_keeps_its_promise():
    """What the current policy gives to tokens nobody samples is missing from k3 and from the total variation."""
    behaviour, current = f64(0.5, 0.5), f64(0.4, 0.2)
    unseen = 1 - float(current.sum())
    log_ratio = current.log() - behaviour.log()
    kl = float(estimators.exact_kl(behaviour, current))
    assert float((behaviour * estimators.k1(log_ratio)).sum()) == pytest.approx(kl, abs=UNBIASED)
    assert float((behaviour * estimators.k3(log_ratio)).sum()) == pytest.approx(kl - unseen, abs=UNBIASED)
    deviation = float((behaviour * (log_ratio.exp() - 1).abs()).sum()) / 2
    assert deviation == pytest.approx(float(estimators.exact_total_variation(behaviour, current)))


def test_the_share_of_effective_samples_tends_to_one_over_one_plus_chi_square_from_above():
    limit = 1 / (1 + float(estimators.exact_chi_square(BEHAVIOUR, CURRENT)))
    shares: list[float] = []
    for draws in (1, 2, 6):
        total = 0.0
        for tokens in itertools.product(range(VOCABULARY), repeat=draws):
            chosen = torch.tensor(tokens)
            found = estimators.summarise(estimators.divergence_sums(LOG_RATIO[chosen]))
            total += float(BEHAVIOUR[chosen].prod()) * found.ess_fraction
        shares.append(total)
    assert shares[0] == 1.0
    assert shares[0] > shares[1] > shares[2] > limit + BIASED


class Tabular:
    """A policy over sequences of `turns` tokens: one row of logits for each state."""

    def __init__(self, seed: int, turns: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.turns = turns
        self.logits = torch.randn(1 + VOCABULARY, VOCABULARY, generator=generator, dtype=torch.float64) * 1.5

    def logprobs(self, tokens: tuple[int, ...]) -> Tensor:
        rows = self.logits[[0, *(1 + token for token in tokens[:-1])]].log_softmax(-1)
        return rows.gather(1, torch.tensor(tokens)[:, None])[:, 0]

    def sequences(self) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        for tokens in itertools.product(range(VOCABULARY), repeat=self.turns):
            yield tokens, self.logprobs(tokens)


def reward(tokens: tuple[int, ...]) -> float:
    return float([1.0, -0.5, 0.3][tokens[0]] + (2.0 if tokens[-1] == 2 else -1.0))


def exact_gradient(policy: Tabular) -> Tensor:
    """Of the expected reward under the policy, with respect to its logits."""
    policy.logits.requires_grad_()
    value = torch.stack([logprobs.sum().exp() * reward(tokens) for tokens, logprobs in policy.sequences()]).sum()
    (gradient,) = torch.autograd.grad(value, policy.logits)
    return gradient


def expected_gradient(policy: Tabular, behaviour: Tabular, choice: ObjectiveChoice) -> Tensor:
    """Of the objective, over sequences that the behaviour policy samples, three versions old."""
    policy.logits.requires_grad_()
    lengths = 1 / policy.turns if choice.surrogate == "gspo" else 1.0
    total = torch.zeros((), dtype=torch.float64)
    for tokens, sampled in behaviour.sequences():
        zeros = torch.zeros(policy.turns, dtype=torch.long)
        advantage = torch.full((policy.turns,), reward(tokens), dtype=torch.float64)
        known = SampledTokens(sampled.detach(), zeros + 3, advantage, zeros)
        found = token_objective(policy.logprobs(tokens), known, choice)
        total = total + sampled.sum().exp().detach() * lengths * found.objective_N.sum()
    (gradient,) = torch.autograd.grad(total, policy.logits)
    return gradient


WIDE = 1e6
SEQUENCE_IS = ObjectiveChoice(correction=Correction("sequence_truncated", cap=WIDE))
TOKEN_IS = ObjectiveChoice(correction=Correction("token_truncated", cap=WIDE))
NONE = ObjectiveChoice(correction=Correction("none"))
TOKEN_TIS = ObjectiveChoice(correction=Correction("token_truncated", cap=1.2))
ICEPOP = ObjectiveChoice(correction=Correction("icepop", low=0.5, high=1.5))
REJECTION = ObjectiveChoice(correction=Correction("geometric_rejection", cap=WIDE, low=0.8, high=1.25))
BEHAVIOUR_PPO = ObjectiveChoice(proximal="behaviour", correction=Correction("none"))
CISPO = ObjectiveChoice(
    proximal="behaviour", surrogate="cispo", correction=Correction("none"), clip_low=1, clip_high=WIDE
)
GSPO = ObjectiveChoice(
    proximal="behaviour", surrogate="gspo", correction=Correction("none"), clip_low=1, clip_high=WIDE
)
DPPO = ObjectiveChoice(proximal="behaviour", surrogate="dppo", correction=Correction("none"), dppo_threshold=0.999)
A3PO = ObjectiveChoice(
    proximal="interpolated", correction=Correction("token_truncated", cap=WIDE), clip_low=1, clip_high=WIDE
)
CHOICES: dict[str, tuple[ObjectiveChoice, bool, bool]] = {
    # name: (choice, unbiased for one token, unbiased for two)
    "sequence importance sampling": (SEQUENCE_IS, True, True),
    "token importance sampling": (TOKEN_IS, True, False),
    "CISPO without limits": (CISPO, True, False),
    "DPPO without limits": (DPPO, True, False),
    "A-3PO without limits": (A3PO, True, False),
    "GSPO without limits": (GSPO, True, False),
    "truncated token weights": (TOKEN_TIS, False, False),
    "IcePop": (ICEPOP, False, False),
    "geometric-mean rejection": (REJECTION, False, False),
    "PPO around the behaviour policy": (BEHAVIOUR_PPO, False, False),
    "no correction": (NONE, False, False),
}


def bias(choice: ObjectiveChoice, turns: int) -> float:
    """Relative error of the expected gradient."""
    policy, behaviour = Tabular(6, turns), Tabular(5, turns)
    exact = exact_gradient(policy)
    return float((expected_gradient(policy, behaviour, choice) - exact).norm() / exact.norm())


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("turns", [1, 2])
def test_which_gradients_are_unbiased(name: str, turns: int):
    choice, *unbiased = CHOICES[name]
    found = bias(choice, turns)
    assert found < UNBIASED if unbiased[turns - 1] else found > BIASED


@pytest.mark.parametrize("name", CHOICES)
def test_every_gradient_is_exact_where_the_policies_are_the_same(name: str):
    choice, *_ = CHOICES[name]
    policy, behaviour = Tabular(6, 2), Tabular(6, 2)
    exact = exact_gradient(policy)
    scale = 0.5 if choice.surrogate == "gspo" else 1.0
    assert torch.allclose(expected_gradient(policy, behaviour, choice), scale * exact, atol=1e-12)


def test_a_weight_of_each_token_is_less_biased_than_none():
    assert bias(TOKEN_IS, 2) < bias(NONE, 2) / 2


def expected_advantage_gradient(kind: str, p: float, members: int) -> float:
    """Expected gradient of a group's objective with respect to the success rate; 1 is the expected reward's."""
    total = 0.0
    for outcomes in itertools.product([0.0, 1.0], repeat=members):
        rewards = f64(*outcomes)
        chance = float(torch.where(rewards == 1, p, 1 - p).prod())
        score = (rewards - p) / (p * (1 - p))
        total += chance * float((group_advantages(rewards, torch.ones(members), kind) * score).mean())
    return total


EXPECTED_ADVANTAGES: dict[str, Callable[[float, int], float]] = {
    "rloo": lambda p, n: 1.0,
    "dr_grpo": lambda p, n: (n - 1) / n,
    "maxrl": lambda p, n: sum((1 - p) ** k for k in range(n - 1)),
}


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("kind", EXPECTED_ADVANTAGES)
def test_what_a_baseline_makes_of_the_gradient(kind: str, p: float):
    """RLOO is unbiased, Dr.GRPO up to a constant; MaxRL follows the first n - 1 terms of log p."""
    members = 5
    assert expected_advantage_gradient(kind, p, members) == pytest.approx(EXPECTED_ADVANTAGES[kind](p, members))


@pytest.mark.parametrize("kind", ["grpo", "grpo_population"])
def test_a_standard_deviation_weighs_tasks_by_their_difficulty(kind: str):
    hard, even, easy = (expected_advantage_gradient(kind, p, 5) for p in (0.1, 0.5, 0.9))
    assert hard > 1.05 * even
    assert easy == pytest.approx(hard)
