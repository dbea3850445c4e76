"""A release in words."""

from demur_proto.release import Estimand, Release, Withheld

LONGEST_SHOWN = 20  #: estimates
WHY = {
    Withheld.BELOW_MINIMUM_COHORT: "fewer reports than the study allows",
    Withheld.SEGMENT_BROKEN: "an earlier round of the running count published nothing",
}

WITHOUT = {
    Estimand.NOTHING: "no interval: devices may have dropped parts of what it counts",
    Estimand.S_SHRUNK: (
        f"unbiased for {Estimand.S_SHRUNK.told}; no interval, since nobody may know how many were shrunk: "
        "a count of halts bounds the sum over everyone"
    ),
}


def told(question: str, release: Release, *, histogram: bool) -> str:
    """A release for people; a number never comes without its guarantee."""
    where = f"round {release.number}, {release.reports:,} reports"
    if not release.estimate.size:
        return f"{question}: withheld, {WHY[release.withheld]} ({where})"
    one = histogram and release.estimate.size == 1  # category: 1 is yes
    shown = [
        f"{('yes: ' if one else f'category {at}: ') if histogram else ''}{value:,.6g}{_around(release, at)}"
        for at, value in enumerate(release.estimate[:LONGEST_SHOWN].tolist())
    ]
    if len(release.estimate) > LONGEST_SHOWN:
        shown.append(f"… ({len(release.estimate)} in all; --json prints them)")
    separator = " " if len(shown) == 1 else "\n  "
    told = f"{question}:{separator}{separator.join(shown)}\n"
    if not release.has_interval:
        return f"{told}{WITHOUT[release.estimand]}; {where}\n{release.guarantee}"
    what = "number of people in each, of those" if histogram else "sum over the people"
    if one:
        what = "number of people whose answer is yes, of those"
    return (
        f"{told}{release.confidence:.0%} interval for {release.estimand.told}: the {what} whose devices "
        f"could still pay; {where}\n{release.guarantee}"
    )


def _around(release: Release, at: int) -> str:
    """How far off an estimate may be, in words that follow it."""
    low, high = release.interval_at(at)
    if not release.has_interval:
        return f", standard error {release.standard_error_at(at):,.6g}"
    if release.half_width.size:
        return f" ± {(high - low) / 2:,.6g}"
    return f" ({low:,.6g} to {high:,.6g})"
