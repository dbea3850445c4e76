"""An owner's data in a SQLite database, asked with the queries of the owner's policy."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from demur_client.guarded_sql import Limits, check_select, guard, select_numbers
from demur_proto.arrays import Values
from demur_proto.checks import check_text
from demur_proto.errors import DataError
from demur_proto.round import Feature

BUSY_S = 0.5  #: how long a database that is being written to is waited for


def check_features(features: Mapping[str, str]) -> Mapping[str, str]:
    """Features and their queries, each of which only reads.

    Raises:
        ParameterError: one of them is no such query; without any data looked at.
    """
    for name, sql in features.items():
        check_text("feature", name, longest=100)
        check_select(f"features.{name}", sql)
    return dict(features)


class TableSource:
    """Maps the name of a feature to one SELECT over a SQLite database.

    Parameters of the feature are bound as `:name`. The result is one row, or several one after the
    other, of finite numbers. The database is opened for each evaluation, for reading only.

    Args:
        path: the database; it need not be there yet.
        features: what may be asked, and the query for each.
        limits: of one evaluation.

    Raises:
        ParameterError: a query is not one SELECT that only reads.
    """

    def __init__(
        self, path: Path, features: Mapping[str, str], *, limits: Limits | None = None
    ) -> None:
        self._path = path
        self._features = check_features(features)
        self._limits = limits or Limits()

    def evaluate(self, feature: Feature) -> Values:
        """The feature's value [1, d].

        Raises:
            DataError: the owner's policy does not name it, or the data give no such value.
            sqlite3.Error, sqlite3.Warning, ValueError: SQLite refuses.
        """
        sql = query_of(self._features, feature)
        if not self._path.is_file():  # a pipe would never end
            raise DataError(f"{self._path} is no file")
        address = f"{self._path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_S)) as connection:
            guard(connection, self._limits)
            return select_numbers(connection, sql, feature.parameters, self._limits)


def query_of(features: Mapping[str, str], feature: Feature) -> str:
    """The query of a feature.

    Raises:
        DataError: there is none.
    """
    try:
        return features[feature.name]
    except KeyError:
        raise DataError(f"the policy names no feature {feature.name!r}") from None
