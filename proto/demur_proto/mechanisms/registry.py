"""The randomisers of histograms, by the name under which a round asks for one."""

from enum import StrEnum

from demur_proto.errors import ParameterError
from demur_proto.mechanisms.categorical import Categorical
from demur_proto.mechanisms.hadamard import HadamardResponse
from demur_proto.mechanisms.local_hashing import LocalHashing
from demur_proto.mechanisms.randomised_response import (
    BinaryRandomisedResponse,
    KaryRandomisedResponse,
)
from demur_proto.mechanisms.subset_selection import SubsetSelection
from demur_proto.mechanisms.unary import Flip, UnaryEncoding


class Randomiser(StrEnum):
    """How a device randomises its category."""

    KRR = "krr"  #: k-ary randomised response
    SUE = "sue"  #: symmetric unary encoding
    OUE = "oue"  #: optimised unary encoding
    BLH = "blh"  #: binary local hashing
    OLH = "olh"  #: optimised local hashing
    HADAMARD = "hadamard"  #: Hadamard response
    SUBSET = "subset"  #: subset selection


ANY_CATEGORY = 1  #: the symbol of the first; all of them cost the same
BIT_CODES = frozenset({Randomiser.SUE, Randomiser.OUE, Randomiser.SUBSET})  #: words 0 or 1
SIZED = frozenset({Randomiser.BLH, Randomiser.OLH, Randomiser.SUBSET})  #: with a size of their own


def randomiser(name: Randomiser, *, categories: int, epsilon: float, size: int = 0) -> Categorical:
    """The mechanism of this name.

    Args:
        name: of the mechanism.
        categories: k, how many there are; 1 with krr only.
        epsilon: ε of one answer, nats; > 0.
        size: of local hashing the range of the hash, of subset selection that of a subset; 0 for
            the mechanism's own choice.

    Raises:
        ParameterError: categories, ε or size are outside the mechanism's range.
    """
    k = categories
    if k == 1 and name is not Randomiser.KRR:
        raise ParameterError("mechanism", str(name), "krr, with one category")
    if size and name not in SIZED:
        raise ParameterError("size", size, f"0 for {name}")
    match name:
        case Randomiser.KRR if k == 1:
            return BinaryRandomisedResponse(epsilon=epsilon)
        case Randomiser.KRR:
            return KaryRandomisedResponse(categories=k, epsilon=epsilon)
        case Randomiser.SUE:
            return UnaryEncoding(categories=k, epsilon=epsilon, flip=Flip.SYMMETRIC)
        case Randomiser.OUE:
            return UnaryEncoding(categories=k, epsilon=epsilon, flip=Flip.OPTIMISED)
        case Randomiser.BLH:
            if size not in (0, 2):
                raise ParameterError("size", size, "2, the hash range of blh")
            return LocalHashing(categories=k, epsilon=epsilon, hash_range=2)
        case Randomiser.OLH:
            return LocalHashing(categories=k, epsilon=epsilon, hash_range=size)
        case Randomiser.HADAMARD:
            return HadamardResponse(categories=k, epsilon=epsilon)
        case Randomiser.SUBSET:
            return SubsetSelection(categories=k, epsilon=epsilon, size=size)


def size_of(mechanism: Categorical) -> int:
    """What a round states as the mechanism's size; 0 where it has none."""
    if isinstance(mechanism, LocalHashing):
        return mechanism.hash_range
    return mechanism.size if isinstance(mechanism, SubsetSelection) else 0
