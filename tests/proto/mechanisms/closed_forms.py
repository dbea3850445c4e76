"""The published divergences of categorical mechanisms against null, of the nominal ε."""

from decimal import Decimal, localcontext

DIGITS = 60  # as in `laws`


def response(epsilon: float, order: float, *, options: int) -> Decimal:
    """Randomised response over so many options, at one of them against another.

    D_α = ln(1 + p (e^((α−1)ε) − 1)(1 − e^(−αε)))/(α − 1),   p = e^ε/(e^ε + options − 1)
    """
    with localcontext() as context:
        context.prec = DIGITS
        grown = Decimal(epsilon).exp()
        if order == float("inf"):
            return Decimal(epsilon)
        kept = grown / (grown + options - 1)
        alpha, nats = Decimal(order), Decimal(epsilon)
        excess = kept * (((alpha - 1) * nats).exp() - 1) * (1 - (-alpha * nats).exp())
        return (1 + excess).ln() / (alpha - 1)


def symmetric(epsilon: float, order: float) -> Decimal:
    """SUE against the code of null: one bit, by binary response of half the ε."""
    return response(epsilon / 2, order, options=2)


def half(epsilon: float, order: float) -> Decimal:
    """OUE against the code of null, and Hadamard response against a uniform index.

    A fair coin against q = 1/(e^ε + 1), in the direction that is worse:

    D_α = ln(2^(−α)(q^(1−α) + (1 − q)^(1−α)))/(α − 1),   or ln(2^(α−1)(q^α + (1 − q)^α))/(α − 1)
    """
    with localcontext() as context:
        context.prec = DIGITS
        rare = 1 / (Decimal(epsilon).exp() + 1)
        two = Decimal(2)
        if order == float("inf"):
            return max(-(two * rare).ln(), (two * (1 - rare)).ln())
        alpha = Decimal(order)
        there = (rare ** (1 - alpha) + (1 - rare) ** (1 - alpha)) / two**alpha
        back = (rare**alpha + (1 - rare) ** alpha) * two ** (alpha - 1)
        return max(there, back).ln() / (alpha - 1)
