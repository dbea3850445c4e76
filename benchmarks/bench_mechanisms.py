"""Mechanisms and exact samplers on one core, beside the bits or numpy's work alone; telemetry."""

import cases_categorical
import cases_hashing
import cases_samplers
import cases_telemetry
from figures import publish


def main() -> None:
    """Measure, print, write."""
    cases = (cases_categorical, cases_hashing, cases_samplers, cases_telemetry)
    publish("mechanisms", [figure for each in cases for figure in each.measure()])


if __name__ == "__main__":
    main()
