"""How people write down which study they mean, and what they ask."""

from collections.abc import Sequence

from demur_proto.errors import NotFoundError, ParameterError
from demur_proto.queries import Feature
from demur_proto.study import Study
from demur_proto.wire.definition import Defined

SHORTEST_HASH = 8  #: digits


def matches(study: Defined[Study], wanted: str) -> bool:
    """Whether somebody means this study: by its name, or by 8 or more digits of its hash."""
    long_enough = len(wanted) >= SHORTEST_HASH
    return study.value.name == wanted or (
        long_enough and study.hash.hex().startswith(wanted.lower())
    )


def choose_study(
    found: list[tuple[Defined[Study], int]], wanted: str | None
) -> tuple[Defined[Study], int]:
    """The one study that is meant.

    Args:
        found: the studies there are.
        wanted: a name, or at least 8 digits of a hash; None for the only one.

    Raises:
        NotFoundError: there is no such study, or more than one.
    """
    meant = found if wanted is None else [each for each in found if matches(each[0], wanted)]
    if len(meant) == 1:
        return meant[0]
    which = "" if wanted is None else f" {wanted!r}"
    if not meant:
        names = ", ".join(repr(study.value.name) for study, _ in found[:5])
        raise NotFoundError(
            f"there is no study{which}; the collector has {names if found else 'none'}"
        )
    choices = ", ".join(f"{study.hash.hex()[:16]} ({study.value.name})" for study, _ in meant[:5])
    raise NotFoundError(f"there are {len(meant)} studies{which}; name one by its hash: {choices}")


def describe_feature(feature: Feature) -> str:
    """A feature as it is asked for on the command line.

    >>> describe_feature(Feature(name="active", parameters={"period": 3.0}))
    'active period=3'
    """
    parameters = sorted(feature.parameters.items())
    return " ".join([feature.name, *(f"{key}={value:g}" for key, value in parameters)])


def read_features(words: Sequence[str]) -> list[Feature]:
    """Features as they are written on the command line: each name, then its parameters.

    Raises:
        ParameterError: a parameter comes before any name, without its own, is no number, or comes
            twice.

    >>> [each.name for each in read_features(["active", "period=3", "amount"])]
    ['active', 'amount']
    """
    features: list[tuple[str, dict[str, float]]] = []
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            if _is_number(word):
                raise ParameterError(
                    "feature", word, "a name; a parameter is written with its own: KEY=VALUE"
                )
            features.append((word, {}))
            continue
        if not features:
            raise ParameterError(
                "feature", word, "a name first, then its parameters: NAME KEY=VALUE"
            )
        parameters = features[-1][1]
        if name in parameters:
            raise ParameterError(f"parameter {name}", text, "given once")
        try:
            parameters[name] = float(text)
        except ValueError:
            raise ParameterError(f"parameter {name}", text, "a number") from None
    return [Feature(name=name, parameters=parameters) for name, parameters in features]


def read_weights(text: str) -> list[list[float]]:
    """Weights as they are written on the command line: rows apart by `;`, numbers by `,`.

    Raises:
        ParameterError: one is no number.

    >>> read_weights("1,0.5;0,-1")
    [[1.0, 0.5], [0.0, -1.0]]
    """
    try:
        return [[float(each) for each in row.split(",")] for row in text.split(";")]
    except ValueError:
        raise ParameterError("--weights", text, "rows of numbers, as in 1,0.5;0,-1") from None


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
