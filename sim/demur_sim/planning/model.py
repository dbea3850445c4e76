"""The public model that a plan rests on: whose value is 1 in which round."""

from dataclasses import dataclass, field, replace
from typing import final

import numpy as np
import numpy.typing as npt

from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_sim.datasets.activity import Activity, Counted, read_activity
from demur_sim.populations import Population
from demur_sim.run import question
from demur_sim.scenario import Kind, Scenario
from demur_sim.scenario_people import population_of
from demur_sim.seeds import Purpose, stream

MOST_CELLS = 1 << 25  #: people times rounds that are looked at; of more people a part
MOST_DRAWN = 1 << 15  #: people drawn from a law

Table = npt.NDArray[np.bool_]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """Who has the value 1 when, in data or a law that everybody may know.

    Raises:
        ParameterError: the table is not one of flags, or empty.
    """

    values: Table = field(repr=False)  #: [T, m], round after round
    people: int  #: how many the data or the law are about
    drawn: bool = False  #: whether those looked at were drawn from a law
    law: Activity | None = None  #: what the table was drawn from, where sums can do without it

    def __post_init__(self) -> None:
        values = self.values
        if values.ndim != 2 or values.dtype != np.bool_ or not values.size:
            found = f"{values.dtype} {values.shape}"
            raise ParameterError("values", found, "flags of shape [rounds, people], not empty")
        values.flags.writeable = False
        check_integer("people", self.people, 1)

    @property
    def rounds(self) -> int:
        """T."""
        return len(self.values)

    @property
    def modelled(self) -> int:
        """How many people are looked at, m."""
        return int(self.values.shape[1])


def check_kind(scenario: Scenario) -> None:
    """Refuse a scenario of what cannot be planned.

    Raises:
        ParameterError: it asks neither sums nor a running count.
    """
    if scenario.kind not in (Kind.LINEAR, Kind.PREFIX):
        raise ParameterError("kind", str(scenario.kind), "linear or prefix, to be planned")


def model_of(scenario: Scenario, population: Population | None = None) -> Model:
    """The model that a scenario's people are.

    Of more than 2^25 values a random part of the people is looked at; of a law that makes people up, as
    many as that or 2^15 are drawn, however many there are to be.

    Args:
        scenario: of sums or of a running count.
        population: public data of one's own; by default the scenario's.

    Raises:
        DataError: the people's data cannot be read.
        ParameterError: the scenario asks something else, a value is neither 0 nor 1, or there are not
            so many periods.
    """
    check_kind(scenario)
    law, data, drawn = None, scenario.data, 0
    people = data.devices if population is None else 0
    if population is None and data.histogram is not None:
        law = read_activity(data.histogram)
        people = people or law.devices
    if population is None and (data.devices or law):
        drawn = min(MOST_DRAWN, max(1, MOST_CELLS // (scenario.rounds or data.periods)))
        population = population_of(replace(scenario, data=replace(data, devices=drawn)))
    elif population is None:
        population = population_of(scenario)
    check_integer("rounds", scenario.rounds, 0, population.periods)
    rounds = scenario.rounds or population.periods
    people = people or population.devices
    part = _part(population, most=max(1, MOST_CELLS // rounds))
    values = np.zeros((rounds, part.devices), dtype=np.bool_)
    for number, row in enumerate(values, start=1):
        row[:] = _flags(part, scenario, number)
    evenly = law is not None and law.counted is Counted.ACTIVE and rounds == population.periods
    return Model(values=values, people=people, drawn=drawn > 0, law=law if evenly else None)


def _part(population: Population, *, most: int) -> Population:
    """At most so many people, whoever they are."""
    if population.devices <= most:
        return population
    return population.shuffled(stream(0, Purpose.DEALING)).part(slice(0, most))


def _flags(people: Population, scenario: Scenario, number: int) -> npt.NDArray[np.bool_]:
    values = people.evaluate(question(scenario, number), slice(0, people.devices))
    if values.shape[1:] != (1,) or not np.isin(values, (0.0, 1.0)).all():
        expected = "one whose values are 0 or 1 for everybody, to be planned"
        raise ParameterError("feature", scenario.feature, expected)
    flags: npt.NDArray[np.bool_] = values[:, 0] != 0
    return flags
