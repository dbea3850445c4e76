"""One's own people, given as an array.

5,000 people have a bicycle computer that knows how many minutes they rode on each of 60 days; on
most days most of them did not ride. The city wants the total for each day. A question costs a person
the square of their own answer: a day without riding is free, half an hour costs a quarter of what
an hour costs.

    python examples/own_data.py [--fidelity processes] [--seed S]
"""

import argparse

import numpy as np

from demur_sim.people.populations import ArrayPopulation
from demur_sim.run import simulate
from demur_sim.scenario import Scenario

PEOPLE, DAYS = 5_000, 60


def riders() -> ArrayPopulation:
    """Minutes of every person on every day [people, days]."""
    rng = np.random.default_rng(1)
    keenness = rng.beta(2.0, 18.0, size=(PEOPLE, 1))  # chance of a ride on any one day
    rides = rng.random((PEOPLE, DAYS)) < keenness
    minutes = rng.gamma(4.0, 6.0, size=(PEOPLE, DAYS))
    return ArrayPopulation(np.where(rides, minutes, 0.0))


def main(*, fidelity: str, seed: int) -> None:
    """Ask every device for its minutes, day by day."""
    scenario = Scenario(
        name="riders",
        title="Minutes on the bicycle, day by day",
        feature="value",  # the one feature of an array
        clip=60.0,  # minutes; a longer ride counts as an hour
        budget=5,  # answers of a full hour that one device can afford, or 20 of half an hour
        grid_exponent=-9,  # minutes are rounded, at random, to multiples of 1/512
        on_grid=False,
    )
    result = simulate(scenario, population=riders(), fidelity=fidelity, seed=seed)

    for release in result.releases[:3]:
        print(
            f"day {release.number}: {release.estimate[0]:,.0f} ± {release.half_width[0]:,.0f} minutes"
        )
    print(f"days answered: {result.answered_rounds}, in the worst case {result.worst_case_rounds}")
    print(
        f"error: {result.rmse:,.0f} minutes against everyone's total, which is "
        f"{result.within_reach.mean():,.0f} on average; "
        f"{result.worst_case_sigma:,.0f} in the worst case for all days"
    )
    print(f"refused once: {result.exhausted_fraction:.1%} of devices (only a simulator knows this)")
    print(result.statement)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One's own people, given as an array.")
    parser.add_argument("--fidelity", choices=["cohort", "processes"], default="cohort")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    main(fidelity=options.fidelity, seed=options.seed)
