"""Features as messages."""

from demur_proto.errors import WireError
from demur_proto.round import Feature
from demur_proto.v1 import round_pb2


def feature_message(feature: Feature) -> round_pb2.Feature:
    """For the wire."""
    return round_pb2.Feature(
        name=feature.name,
        parameters=[
            round_pb2.Parameter(name=name, value=value)
            for name, value in sorted(feature.parameters.items())
        ],
    )


def feature_value(message: round_pb2.Feature) -> Feature:
    """From the wire.

    Raises:
        WireError: it repeats a parameter.
        ParameterError: it is no feature.
    """
    parameters = {parameter.name: parameter.value for parameter in message.parameters}
    if len(parameters) != len(message.parameters):
        raise WireError(f"not a valid round: feature {message.name!r} repeats a parameter")
    return Feature(name=message.name, parameters=parameters)
