"""The kinds of questions: one module each, and all that depends on the kind.

`base` says what a kind declares; `registry` knows all of them.
"""

from demur_proto.queries.base import (
    CountingQuery,
    Feature,
    GaussianQuery,
    ModelQuery,
    Query,
    Reads,
)
from demur_proto.queries.error_count import ErrorCount
from demur_proto.queries.gradient import Gradient
from demur_proto.queries.halt_count import HaltCount
from demur_proto.queries.histogram import MOST_CATEGORIES, Histogram
from demur_proto.queries.linear import Linear, Weights
from demur_proto.queries.running_count import RunningCount

__all__ = [
    "MOST_CATEGORIES",
    "CountingQuery",
    "ErrorCount",
    "Feature",
    "GaussianQuery",
    "Gradient",
    "HaltCount",
    "Histogram",
    "Linear",
    "ModelQuery",
    "Query",
    "Reads",
    "RunningCount",
    "Weights",
]
