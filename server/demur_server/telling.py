"""A release in words."""

from demur_proto.release import Release, Withheld

LONGEST_SHOWN = 20  #: estimates
WHY = {
    Withheld.BELOW_MINIMUM_COHORT: "fewer reports than the study allows",
    Withheld.SEGMENT_BROKEN: "an earlier round of the running count published nothing",
}


def told(question: str, release: Release, *, histogram: bool) -> str:
    """A release for people; a number never comes without its guarantee."""
    where = f"round {release.number}, {release.reports:,} reports"
    if not release.estimate.size:
        return f"{question}: withheld, {WHY[release.withheld]} ({where})"
    if not release.half_width.size:
        value, error = release.estimate[0], release.standard_error_at(0)
        return (
            f"{question}: {value:,.6g}, standard error {error:,.6g}\n"
            f"no interval: devices may have dropped parts of what it counts; {where}\n"
            f"{release.guarantee}"
        )
    shown = [
        f"{f'category {at}: ' if histogram else ''}{value:,.6g} ± {release.half_width_at(at):,.6g}"
        for at, value in enumerate(release.estimate[:LONGEST_SHOWN].tolist())
    ]
    if len(release.estimate) > LONGEST_SHOWN:
        shown.append(f"… ({len(release.estimate)} in all; --json prints them)")
    separator = " " if len(shown) == 1 else "\n  "
    what = (
        "number of people in each, of those whose devices could afford the answer"
        if histogram
        else "sum over the people of what their devices could afford to tell"
    )
    return (
        f"{question}:{separator}{separator.join(shown)}\n"
        f"{release.confidence:.0%} interval for the {what}; {where}\n"
        f"{release.guarantee}"
    )
