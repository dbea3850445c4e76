"""Categorical mechanisms at two categories, neither of them null: what tells two people apart.

No device is charged by these: a charge is against null. They are for whoever compares mechanisms,
and for published curves.
"""

import math

from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.finite_pairs import Level, apart_levels
from demur_proto.mechanisms.thresholds import check_epsilon
from demur_proto.mechanisms.unary import Flip

MOST_OUTPUTS = 1 << 53


def unary_pair_levels(epsilon: float, *, flip: Flip) -> tuple[Level, ...]:
    """Codes of one category against those of another: both bits tell, if they differ.

    >>> [round(level.mass, 3) for level in unary_pair_levels(math.log(3), flip=Flip.OPTIMISED)]
    [0.125, 0.375, 0.5]
    """
    check_epsilon(epsilon)
    if flip is Flip.OPTIMISED:  # a fair bit, and one that is set with 1/(e^ε + 1)
        return half_pair_levels(epsilon)
    if flip is Flip.SYMMETRIC:  # two bits, each wrong with 1/(e^(ε/2) + 1)
        return apart_levels(epsilon, apart=1 / (math.exp(epsilon / 2) + 1) ** 2)
    raise ParameterError("flip", flip, "a Flip")


def half_pair_levels(epsilon: float) -> tuple[Level, ...]:
    """Hadamard response, or OUE, at two categories: on half of all outputs they agree.

    >>> [round(level.mass, 3) for level in half_pair_levels(math.log(3))]
    [0.125, 0.375, 0.5]
    """
    check_epsilon(epsilon)
    return apart_levels(epsilon, apart=0.5 / (math.exp(epsilon) + 1))


def block_pair_levels(
    epsilon: float, *, outputs: int, size: int, same_block: bool
) -> tuple[Level, ...]:
    """Hadamard response in blocks, at two categories.

    A category has `size` of all outputs on which it is likely, e^ε times as much as elsewhere: half of
    one block. Two categories of one block share half of theirs, those of different blocks none.

    Args:
        epsilon: ε, nats; 1e-9 to 50.
        outputs: K; 2 to 2^53.
        size: s; even where blocks are shared, 1 to K/2.
        same_block: whether both categories have the same block.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Acharya, Sun & Zhang 2019, arXiv:1802.04705, section 5.

    >>> levels = block_pair_levels(math.log(3), outputs=8, size=2, same_block=True)
    >>> [round(level.mass, 3) for level in levels]
    [0.083, 0.25, 0.667]
    """
    check_epsilon(epsilon)
    check_integer("outputs", outputs, 2, MOST_OUTPUTS)
    check_integer("size", size, 1, outputs // 2)
    if type(same_block) is not bool:
        raise ParameterError("same_block", same_block, "True or False")
    if same_block and size % 2:
        raise ParameterError("size", size, "even, to share half of it")
    alone = size // 2 if same_block else size
    return apart_levels(epsilon, apart=alone / (size * math.exp(epsilon) + outputs - size))
