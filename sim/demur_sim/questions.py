"""What may be asked of a simulated population, found out before anybody is asked."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from demur_proto.arrays import Values
from demur_proto.errors import ParameterError
from demur_proto.gradients import inputs_of, model_of
from demur_proto.grid import grid_step, squared_radius
from demur_proto.models.definition import ModelDefinition
from demur_proto.round import Feature
from demur_proto.weights import Weights
from demur_sim.labelled_people import LabelledPeople
from demur_sim.populations import Population, side_by_side
from demur_sim.portions import BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question that this population can answer."""

    features: tuple[Feature, ...]
    weights: Weights | None
    dimension: int
    clip: float
    on_grid: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Checks questions against the people they are for. Only a simulator could do that."""

    population: Population
    clip: float  #: where a question names none, data units
    on_grid: bool  #: where a question does not say
    grid_exponent: int

    def checked(
        self,
        features: Sequence[Feature],
        *,
        weights: Sequence[Sequence[float]] | None = None,
        clip: float | None,
        on_grid: bool | None,
    ) -> Question:
        """The question in full.

        Raises:
            ParameterError: there is no feature, one is unknown, weights do not fit, or `on_grid` is promised of
                values that are not multiples of the grid step within the clip; on a device such
                a value would silently count as nothing.
        """
        for feature in features:
            if not isinstance(feature, Feature):
                raise ParameterError("features", feature, "Feature(name=…, parameters=…) each")
        if not features:
            raise ParameterError("features", features, "at least one feature")
        first = side_by_side(self.population, features, slice(0, min(1, self.population.devices)))
        matrix = None if weights is None else Weights.of(weights)
        question = Question(
            features=tuple(features),
            weights=matrix,
            dimension=(first if matrix is None else matrix.apply(first)).shape[1],
            clip=self.clip if clip is None else clip,
            on_grid=self.on_grid if on_grid is None else on_grid,
        )
        if question.on_grid:
            self._check_promise(question)
        return question

    def check_category(self, feature: Feature) -> None:
        """Refuse what gives these people no category: one number each.

        Which numbers they are is not looked at: one that is no category counts as nothing.

        Raises:
            ParameterError: the feature is unknown, or gives several numbers.
        """
        self._check_number(feature, "the category")

    def check_state(self, feature: Feature) -> None:
        """Refuse what gives these people no state: one number each, likewise.

        Raises:
            ParameterError: the feature is unknown, or gives several numbers.
        """
        self._check_number(feature, "the state")

    def _check_number(self, feature: Feature, what: str) -> None:
        if not isinstance(feature, Feature):
            raise ParameterError("feature", feature, "Feature(name=…, parameters=…)")
        first = side_by_side(self.population, [feature], slice(0, min(1, self.population.devices)))
        if first.shape[1] != 1:
            raise ParameterError("feature", feature.name, f"one that gives one number, {what}")

    def check_model(self, model: ModelDefinition) -> None:
        """Refuse a model that these people's examples do not fit.

        Raises:
            ParameterError: it is none, or they own none that fit.
            UnsupportedError: this version computes no gradients of it.
        """
        if not isinstance(model, ModelDefinition):
            raise ParameterError("model", type(model).__name__, "a ModelDefinition")
        learner = model_of(model)
        people = self.population
        if not isinstance(people, LabelledPeople):
            raise ParameterError("population", people, "people who own labelled examples")
        first = inputs_of(model.features, people.data[:1])
        if first.shape[1:] != (learner.inputs,):
            raise ParameterError("model", first.shape[1:], f"one of {learner.inputs} inputs each")

    def checked_error_count(self, model: ModelDefinition, *, on_grid: bool | None) -> bool:
        """Whether an error count is on the grid, once these people can be asked for it.

        Raises:
            ParameterError: as `check_model`, or `on_grid` is promised of shares that are not
                multiples of the grid step.
            UnsupportedError: as `check_model`.
        """
        self.check_model(model)
        promised = self.on_grid if on_grid is None else on_grid
        people = self.population
        if promised and isinstance(people, LabelledPeople):
            for size in np.unique(np.diff(people.people)).tolist():
                if size and Fraction(1, size) % grid_step(self.grid_exponent):
                    expected = (
                        f"false, as somebody has {size} examples, and shares of them are not all "
                        f"multiples of 2^{self.grid_exponent}"
                    )
                    raise ParameterError("on_grid", True, expected)
        return promised

    def _check_promise(self, question: Question) -> None:
        exponent = self.grid_exponent
        radius = squared_radius(question.clip, exponent)
        for given in blocks(self.population, question.features):
            values = given if question.weights is None else question.weights.apply(given)
            with np.errstate(over="ignore"):
                steps = np.ldexp(values, -exponent)
                squares = np.einsum("nd,nd->n", steps, steps)
            if not (np.rint(steps) == steps).all() or not (squares <= radius).all():
                expected = (
                    f"false, as not all values are multiples of 2^{exponent} within the clip "
                    f"{question.clip:g}"
                )
                raise ParameterError("on_grid", True, expected)


def blocks(population: Population, features: Sequence[Feature]) -> Iterator[Values]:
    """Everyone's values of some features side by side, block by block [n, d]."""
    for at in range(0, population.devices, BLOCK):
        yield side_by_side(population, features, slice(at, min(at + BLOCK, population.devices)))
