"""Where a device's answers come from: its owner's own data."""

from typing import Protocol

import numpy as np

from demur_proto.arrays import Values
from demur_proto.round import Feature, Query


class DataSource(Protocol):
    """Computes features of one person's data."""

    def evaluate(self, feature: Feature) -> Values:
        """The feature's value for this person: shape [1, d], data units; or [1, 1], a category.

        A plain number will do for one coordinate. Whoever has no category gives −1 or NaN. Whatever
        this raises is treated like a value: the device answers with a cover report, and nobody
        else can tell. So a mistake in it is seen by calling it, not by asking the device.
        """


def evaluate_query(query: Query, source: DataSource) -> Values | None:
    """All features of a query side by side [1, v]; None where any of it fails.

    A value that arrives here may still be none: a mechanism encodes as nothing what is no number, or
    no category.

    An error that depends on a person's data is just another value, and must not show: no kind of
    failure may leave this function, not even the source's own exit. The owner's own tools can
    evaluate again to see it.
    """
    try:
        parts = [np.asarray(source.evaluate(feature), float) for feature in query.features]
        value = np.concatenate([part.reshape(1, -1) for part in parts], axis=1)
    except KeyboardInterrupt:  # the owner's
        raise
    except BaseException:  # noqa: BLE001  any failure is the same cover report to everyone outside
        return None
    return value if value.shape == (1, query.value_length) else None
