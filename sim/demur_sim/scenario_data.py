"""Whose data a scenario is about: the table `[data]`."""

from dataclasses import dataclass, fields

from demur_proto.checks import check_integer, check_text
from demur_proto.errors import ParameterError
from demur_sim.datasets.events import MOST_PERIOD_DAYS, check_days
from demur_sim.populations import MOST_DEVICES, MOST_PERIODS


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Who the people are: those with events in a CSV file, made-up ones, or the CDNOW customers.

    Made-up people follow a histogram of how often people are active, or the law of a shipped scenario.

    Raises:
        ParameterError: a field is outside its range, or describes what is not given.
    """

    csv: str | None = None  #: path of the file, plain or gzipped
    person: str = "customer_id"  #: column with whose event it is
    date: str = "date"  #: column with its day
    amount: str | None = None  #: column with its amount; None: events have none
    start: str | None = None  #: first day of period 1, yyyy-mm-dd; None: the earliest in the file
    end: str | None = None  #: last day of the last period, yyyy-mm-dd; None: the latest in the file
    period_days: int = 1  #: how many days a period has; 1 to 366
    histogram: str | None = None  #: path of a CSV file: of how many people act how often
    devices: int = 0  #: how many people are made up; 0: none, or as many as the histogram counts
    periods: int = 0  #: how many days of theirs there are
    seed: int = 0  #: who they are

    def __post_init__(self) -> None:
        for item in fields(self):
            name, value = f"data.{item.name}", getattr(self, item.name)
            if isinstance(item.default, int):
                continue
            if value is not None or item.default is not None:
                check_text(name, value, longest=4096)
            if self.csv is None and value != item.default and name != "data.histogram":
                raise ParameterError(name, value, "left out where there is no data.csv")
        try:
            check_days(self.start, self.end)
        except ParameterError as error:
            raise ParameterError(f"data.{error.name}", error.value, error.expected) from None
        check_integer("data.period_days", self.period_days, 1, MOST_PERIOD_DAYS)
        check_integer("data.devices", self.devices, 0, MOST_DEVICES)
        made_up = bool(self.devices) or self.histogram is not None
        check_integer("data.periods", self.periods, 1 if made_up else 0, MOST_PERIODS)
        check_integer("data.seed", self.seed, 0)
        for name in ("devices", "histogram"):
            if getattr(self, name) and self.csv is not None:
                expected = "left out where there is a data.csv"
                raise ParameterError(f"data.{name}", getattr(self, name), expected)
        if made_up and self.period_days != 1:
            expected = "left out where there are made-up people, whose periods have no days"
            raise ParameterError("data.period_days", self.period_days, expected)
        for name in ("periods", "seed"):
            if getattr(self, name) and not made_up:
                expected = "left out where there is no data.devices"
                raise ParameterError(f"data.{name}", getattr(self, name), expected)
