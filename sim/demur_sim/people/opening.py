"""The people of a scenario: read from a file, or made up by its kind."""

from demur_proto.errors import ParameterError
from demur_proto.queries import Feature
from demur_sim.datasets.activity import read_activity
from demur_sim.datasets.events import load_cdnow, read_events
from demur_sim.people.populations import AMOUNT_BIN, FLAGS, EventLog, Population, edges_of
from demur_sim.people.states import STATE, States
from demur_sim.people.telemetry import EVENT, Telemetry
from demur_sim.scenario import Kind, Scenario

OF_AMOUNTS = ("amount", "amount_at_least", AMOUNT_BIN)


def population_of(scenario: Scenario) -> Population:
    """The people of a scenario, in the order of their ids and not shuffled yet.

    Raises:
        DataError: the file with their data cannot be read.
        ParameterError: they do not have the scenario's feature, or not with these parameters, or
            its values break the promise of `on_grid`, or are no values that could be added up.
    """
    data = scenario.data
    people: Population
    if data.histogram is not None:
        activity = read_activity(data.histogram)
        devices = data.devices or activity.devices
        people = activity.made_up(devices=devices, periods=data.periods, seed=data.seed)
    elif data.devices:
        people = _made_up(scenario)
    elif data.csv is None:
        people = load_cdnow(period_days=data.period_days)
    else:
        people = read_events(
            data.csv,
            person=data.person,
            date=data.date,
            amount=data.amount,
            start=data.start,
            end=data.end,
            period_days=data.period_days,
        )
    without = isinstance(people, EventLog) and people.total is None
    if without and scenario.feature in OF_AMOUNTS:
        raise ParameterError("data.amount", None, f"the column that {scenario.feature!r} adds up")
    _check_feature(scenario, people)
    if scenario.feature == AMOUNT_BIN:
        _check_bins(scenario)
    if scenario.on_grid and scenario.kind is Kind.LINEAR:
        _check_promise(scenario)
    return people


def _made_up(scenario: Scenario) -> Population:
    data = scenario.data
    if scenario.kind is Kind.HISTOGRAM and scenario.feature != STATE:
        return Telemetry.of(
            devices=data.devices,
            periods=data.periods,
            categories=scenario.categories,
            seed=data.seed,
        )
    if scenario.kind is Kind.PREFIX or scenario.feature == STATE:
        return States.of(devices=data.devices, periods=data.periods, seed=data.seed)
    expected = (
        f"histogram or prefix where there is data.devices, who have an {EVENT!r} with a category, "
        f"or a {STATE!r}"
    )
    raise ParameterError("kind", scenario.kind, expected)


def _check_feature(scenario: Scenario, people: Population) -> None:
    """Refuse what no round could ask."""
    asked = Feature(name=scenario.feature, parameters={**scenario.parameters, "period": 1})
    people.evaluate(asked, slice(0, 0))


def _check_bins(scenario: Scenario) -> None:
    """Refuse bins that nothing could be added up of, or of which a histogram would count only some."""
    if scenario.kind is not Kind.HISTOGRAM:
        expected = f"{Kind.HISTOGRAM} where feature is {AMOUNT_BIN}, which is a category"
        raise ParameterError("kind", str(scenario.kind), expected)
    bins = len(edges_of(scenario.parameters)) + 1
    if scenario.categories != bins:
        expected = f"{bins}, as many as {bins - 1} edges make bins"
        raise ParameterError("categories", scenario.categories, expected)


def _check_promise(scenario: Scenario) -> None:
    """Refuse a false `on_grid`: a value that breaks it would silently count as nothing."""
    if scenario.feature not in (*FLAGS, STATE):
        raise ParameterError(
            "on_grid", True, f"false for {scenario.feature!r}, which has values of any size"
        )
    if scenario.clip < 1 or scenario.grid_exponent > 0:
        raise ParameterError(
            "on_grid",
            True,
            f"false unless clip >= 1 and grid_exponent <= 0: {scenario.feature!r} may be 1",
        )
