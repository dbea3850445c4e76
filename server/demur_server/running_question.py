"""A running count as `demur ask` puts it: which study it needs, and where it goes on."""

from collections.abc import Mapping
from typing import Any

from demur_proto.checks import check_integer
from demur_proto.continual.factors import change_norm
from demur_proto.counting_queries import check_counting
from demur_proto.errors import ParameterError
from demur_proto.release import Release
from demur_proto.round import Feature, Prefix
from demur_proto.segments import MOST_DEVICES, MOST_POSITIONS, Factorisation, Segment, doubling
from demur_proto.study import Policy, Study, design_study
from demur_server.analyst import Analyst

FIRST_SEGMENT = 64  #: rounds, where no end is known and nobody says otherwise
SQUARE_ROOT = Factorisation.SQUARE_ROOT
OF_COUNTS = ("segment", "bound", "cohort", "anew")  #: options of running counts only
RANGES = {"segment": MOST_POSITIONS, "bound": (1 << 31) - 1, "cohort": MOST_DEVICES}


def check_options(features: tuple[Feature, ...], given: Mapping[str, Any]) -> None:
    """Refuse what no running count can be asked with.

    Raises:
        ParameterError: an option has no such value, or there is more than one feature.
    """
    if len(features) != 1:
        names = " ".join(each.name for each in features)
        raise ParameterError("question", names, "one feature, which is the state")
    for name, most in RANGES.items():
        if name in given:
            check_integer(f"--{name}", given[name], 1, most)
    if given.get("policy") is Policy.CLIP:
        raise ParameterError("--policy", "clip", "skip or retire, as no change can be shrunk")


def counting_study(name: str, contract: Mapping[str, Any], given: Mapping[str, Any]) -> Study:
    """A study in which so many changes of anybody's state fit, whenever they come.

    A change is as large as in the longest segment that may come.

    Raises:
        ParameterError: an option has no such value.
    """
    told = dict(contract)
    exponent = told.pop("grid_exponent", -14)
    bound, rounds = given.get("bound", 1), told.get("horizon", 0)
    first = _first_horizon(given, rounds)
    longest = doubling(rounds, first=first)[-1] if rounds else MOST_POSITIONS
    check_counting(Segment(horizon=longest, cohort=1), bound=bound, sigma=1.0, exponent=exponent)
    norm = change_norm(SQUARE_ROOT, horizon=longest, exponent=exponent)
    return design_study(name=name, clip=bound * norm, grid_exponent=exponent, **told)


async def ask_running(
    analyst: Analyst,
    feature: Feature,
    given: Mapping[str, Any],
    *,
    reports: int | None,
    timeout_s: float,
) -> Release:
    """Ask the next round of a feature's running count, or the first one.

    Raises:
        ParameterError: the count says something else, or it is another feature that is counted.
        StateError: its last round is open, or nothing can go on with it.
        DemurError: as `Analyst.ask_prefix`.
    """
    going: Prefix | None = None
    known: tuple[str, ...] = ()
    if not given.get("anew"):
        going, known = await analyst.next_or_others(feature.name)
    study = analyst.study.value
    if going is None:
        if known:
            expected = f"{' or '.join(known)}, which this study counts; --anew begins another count"
            raise ParameterError("question", feature.name, expected)
        segment = Segment(
            horizon=_first_horizon(given, study.horizon),
            cohort=given.get("cohort", study.minimum_cohort),
        )
        bound = given.get("bound", 1)
    else:
        segment, bound = going.segment, going.bound
        first = (*segment.earlier, segment.horizon)[0]
        kept = {"segment": first, "bound": bound, "cohort": segment.cohort}
        for name, value in kept.items():
            if given.get(name, value) != value:
                expected = f"{value}, as the count says; --anew begins another one"
                raise ParameterError(f"--{name}", given[name], expected)
    return await analyst.ask_prefix(
        feature,
        segment,
        bound=bound,
        reports=reports,
        timeout_s=timeout_s,
    )


def _first_horizon(given: Mapping[str, Any], rounds: int) -> int:
    """Of the first segment: as told, or all rounds of a study that says how many there are."""
    horizon: int = given.get("segment", min(rounds or FIRST_SEGMENT, MOST_POSITIONS))
    return horizon
