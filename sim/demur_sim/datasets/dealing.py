"""Who owns which examples: one each, some each, or each with favourite labels."""

from dataclasses import dataclass, field

import numpy as np

from demur_proto.arrays import Integers
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError
from demur_proto.models.examples import Examples, Inputs, check_people

MOST_EXAMPLES = 1 << 31
LEAST_ALPHA, LARGEST_ALPHA = 1e-6, 1e6  #: beyond, people have one label, or are all alike


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Deal:
    """Examples dealt to people, each at most once.

    Raises:
        ParameterError: the arrays do not fit together.

    >>> Deal(order=np.array([2, 0, 1]), people=np.array([0, 1, 3])).examples(
    ...     np.eye(3), np.array([7, 8, 9])).labels
    array([9, 7, 8])
    """

    order: Integers = field(repr=False)  #: numbers of examples, person after person
    people: Integers = field(repr=False)  #: person i has order[people[i]:people[i + 1]]; [n + 1]

    def __post_init__(self) -> None:
        check_people(self.people, len(self.order))

    def examples(self, inputs: Inputs, labels: Integers) -> Examples:
        """The people with these examples; a copy in the order of people.

        Args:
            inputs: [m, inputs], of all examples.
            labels: [m].

        Raises:
            ParameterError: there are fewer than were dealt.
        """
        if len(inputs) <= self.order.max(initial=-1) or len(labels) != len(inputs):
            expected = f"at least {self.order.max(initial=-1) + 1}, with one label each"
            raise ParameterError("inputs", (len(inputs), len(labels)), expected)
        return Examples(inputs=inputs[self.order], labels=labels[self.order], people=self.people)


def deal_equally(examples: int, *, per_person: int, rng: np.random.Generator) -> Deal:
    """Deal so many examples to each person at random; the last one gets what is left over.

    Args:
        examples: how many there are, m; 0 to 2^31.
        per_person: how many each gets, k; >= 1. With 1 every example is a person.
        rng: public; who gets what.

    Raises:
        ParameterError: an argument is outside its range.

    >>> deal_equally(7, per_person=3, rng=np.random.default_rng(1)).people
    array([0, 3, 6, 7])
    """
    check_integer("examples", examples, 0, MOST_EXAMPLES)
    check_integer("per_person", per_person, 1, MOST_EXAMPLES)
    return Deal(order=rng.permutation(examples), people=_offsets(examples, per_person))


def deal_skewed(
    labels: Integers, *, per_person: int, alpha: float, rng: np.random.Generator
) -> Deal:
    """Deal so many examples to each person, who has favourite labels.

    A person's labels are drawn with probabilities from a Dirichlet distribution with the parameter αp, p
    the shares of labels among all examples, and without putting back: a label that has run out leaves
    its place to the others. So all examples are dealt, and the last people get what others left.
    α → 0 gives people of one label, α → ∞ people like everyone.

    Args:
        labels: of all examples [m]; ≥ 0.
        per_person: how many each gets, k; >= 1. The last person may get fewer.
        alpha: α; 10^-6 to 10^6.
        rng: public; who gets what.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Hsu, Qi & Brown 2019, arXiv:1909.06335, section 3.1.

    >>> deal = deal_skewed(
    ...     np.array([0, 1] * 8), per_person=8, alpha=1e-6, rng=np.random.default_rng(1))
    >>> deal.order % 2  # one person has all of one label, the other all of the other
    array([1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0])
    """
    check_integer("per_person", per_person, 1, MOST_EXAMPLES)
    check_positive("alpha", alpha)
    if not LEAST_ALPHA <= alpha <= LARGEST_ALPHA:
        raise ParameterError("alpha", alpha, f"from {LEAST_ALPHA:g} to {LARGEST_ALPHA:g}")
    if labels.ndim != 1 or labels.dtype != np.int64 or labels.min(initial=0) < 0:
        raise ParameterError("labels", (str(labels.dtype), labels.shape), "int64 >= 0 of shape [m]")
    people = _offsets(len(labels), per_person)
    # Of each label its examples in random order, and how many of them are taken.
    shuffled = rng.permutation(len(labels))
    kinds, counts = np.unique(labels, return_counts=True)
    piles = [shuffled[labels[shuffled] == kind] for kind in kinds]
    taken = np.zeros(len(kinds), dtype=np.int64)
    parts = []
    for size in np.diff(people).tolist():
        wants = rng.dirichlet(alpha * counts / len(labels))
        while size:
            left = counts - taken
            shares = np.where(left > 0, wants, 0.0)
            if not shares.sum() > 0:  # none of the favourites is left
                shares = left.astype(np.float64)
            drawn = np.minimum(rng.multinomial(size, shares / shares.sum()), left)
            for kind in np.flatnonzero(drawn).tolist():
                parts.append(piles[kind][taken[kind] : taken[kind] + drawn[kind]])
            taken += drawn
            size -= int(drawn.sum())
    order = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    return Deal(order=order, people=people)


def _offsets(examples: int, per_person: int) -> Integers:
    people = -(-examples // per_person)
    return np.minimum(np.arange(people + 1) * per_person, examples)
