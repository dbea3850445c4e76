"""The CDNOW customers: who bought music when, from the shipped file."""

from importlib import resources

from demur_sim.datasets.events import read_events
from demur_sim.populations import EventLog


def load_cdnow(*, period_days: int = 1) -> EventLog:
    """The purchases of 23,570 people over 546 days, 1997-01-01 to 1998-06-30.

    All of them bought for the first time in the first three months. Amounts are in US dollars.

    Args:
        period_days: how many days a period has, see `read_events`; 7 make 78 weeks.

    Source: CDNOW customer transactions, the public teaching data of Peter Fader and Bruce Hardie,
    brucehardie.com/datasets.
    """
    file = resources.files("demur_sim.datasets") / "cdnow.csv.gz"
    with resources.as_file(file) as path:
        return read_events(
            path,
            amount="amount_usd",
            start="1997-01-01",
            end="1998-06-30",
            period_days=period_days,
        )
