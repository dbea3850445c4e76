"""The evaluator that fits the system."""

import platform

from demur_client.evaluator.spare import SpareEvaluator
from demur_client.evaluator.supervised import SupervisedEvaluator
from demur_client.policy import OwnerPolicy
from demur_client.sources.base import DataSource, ExampleSource

DeployedEvaluator = SupervisedEvaluator | SpareEvaluator
"""What may look at the data of a person's device: nothing else may."""


def open_evaluator(source: DataSource | ExampleSource, policy: OwnerPolicy) -> DeployedEvaluator:
    """What evaluates an owner's data, within the limits of the owner's policy; a context manager.

    Args:
        source: the data.
        policy: the owner's.

    Raises:
        StateError: as `SupervisedEvaluator`, on Linux.
        ParameterError: as `SpareEvaluator`, elsewhere.
    """
    limits = policy.evaluation_limits
    if platform.system() == "Linux":
        return SupervisedEvaluator(source, limits=limits, filler=policy.fill_processor)
    return SpareEvaluator(source, limits=limits)
