"""What all factorisations ask of their horizon and grid."""

from demur_proto.checks import check_integer
from demur_proto.counting_queries import FINEST_COUNTING
from demur_proto.segments import MOST_POSITIONS


def check_factors(horizon: int, exponent: int) -> None:
    """Refuse what no factorisation can be made for.

    Raises:
        ParameterError: the horizon is not from 1 to 2^14, or the exponent not from −20 to 0.
    """
    check_integer("horizon", horizon, 1, MOST_POSITIONS)
    check_integer("exponent", exponent, FINEST_COUNTING, 0)
