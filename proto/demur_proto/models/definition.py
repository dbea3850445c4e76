"""Models with their parameters as bytes: written once, hashed, and never serialised again."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from demur_proto.arrays import Vector
from demur_proto.checks import check_text
from demur_proto.errors import ParameterError, UnsupportedError, WireError
from demur_proto.models.architectures import HiddenLayer, Softmax
from demur_proto.models.base import MOST_PARAMETERS, check_sizes
from demur_proto.models.features import OrientedGradients, Pixels
from demur_proto.models.whitened_gradients import WhitenedGradients
from demur_proto.v1 import model_pb2
from demur_proto.wire.hmacs import hash_definition

MODEL_TAG = b"demur.model.v1\x00"
DOUBLE = np.dtype("<f8")  #: of θ on the wire
LARGEST_MODEL_BYTES = MOST_PARAMETERS * DOUBLE.itemsize + 1024

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module that a device has already, by its path. Reading one imports nothing.

    Raises:
        ParameterError: a field is outside its range.

    >>> Module(path="vision.small:Net", inputs=784, classes=10, parameters=26_010).parameters
    26010
    """

    path: str  #: package.module:name; 1 to 200 characters
    inputs: int  #: numbers of one example; 1 to 2^15
    classes: int  #: labels; 2 to 2^12
    parameters: int  #: d; 1 to 2^18

    def __post_init__(self) -> None:
        check_module_path("path", self.path)
        check_sizes(self.parameters, inputs=self.inputs, classes=self.classes)


def check_module_path(name: str, path: object) -> None:
    """Refuse what is not the path of a module.

    Raises:
        ParameterError: it is something else.

    >>> check_module_path("path", "vision.small:Net")
    """
    if not isinstance(path, str):
        raise ParameterError(name, path, "package.module:name")
    check_text(name, path, longest=200)
    if not _PATH.fullmatch(path):
        raise ParameterError(name, path, "package.module:name")


Architecture = Softmax | HiddenLayer | Module
Features = Pixels | OrientedGradients | WhitenedGradients

ARCHITECTURES: dict[str, type[Architecture]] = {
    "softmax": Softmax,
    "hidden_layer": HiddenLayer,
    "module": Module,
}
FEATURES: dict[str, type[Features]] = {
    "pixels": Pixels,
    "oriented_gradients": OrientedGradients,
    "whitened_gradients": WhitenedGradients,
}
KINDS: Mapping[type, str] = {
    make: kind for kind, make in [*ARCHITECTURES.items(), *FEATURES.items()]
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelDefinition:
    """A model and its parameters at one step of its training.

    Raises:
        ParameterError: the parts do not fit together, or θ is not finite.

    >>> softmax = Softmax(inputs=2, classes=2)
    >>> ModelDefinition(architecture=softmax, theta=np.zeros(6)).theta.tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """

    architecture: Architecture
    features: Features | None = None  #: None: examples are the inputs
    theta: Vector = field(repr=False)  #: all parameters [d]; finite; a copy that cannot be written

    def __post_init__(self) -> None:
        if not isinstance(self.architecture, Architecture):
            raise ParameterError("architecture", self.architecture, _one_of(ARCHITECTURES))
        if self.features is not None and not isinstance(self.features, Features):
            raise ParameterError("features", self.features, _one_of(FEATURES))
        if self.features is not None and self.features.length != self.architecture.inputs:
            raise ParameterError(
                "inputs", self.architecture.inputs, f"{self.features.length}, as many as features"
            )
        parameters = self.architecture.parameters
        if self.theta.shape != (parameters,) or self.theta.dtype != np.float64:
            shown = (str(self.theta.dtype), self.theta.shape)
            raise ParameterError("theta", shown, f"float64 of shape [{parameters}]")
        wrong = np.flatnonzero(~np.isfinite(self.theta))
        if len(wrong):
            shown_at = f"{self.theta[wrong[0]]} at {wrong[0]}"
            raise ParameterError("theta", shown_at, "finite numbers")
        kept = self.theta.copy()
        kept.flags.writeable = False
        object.__setattr__(self, "theta", kept)


@dataclass(frozen=True, slots=True, eq=False)
class DefinedModel:
    """A model together with the bytes that define it."""

    value: ModelDefinition
    definition: bytes = field(repr=False)  #: exactly as they were written
    hash: bytes  #: SHA-256(tag ‖ definition), 32 bytes

    @property
    def parameters(self) -> int:
        """How many parameters it has, which is the length of its gradient."""
        return self.value.architecture.parameters


def define_model(model: ModelDefinition) -> DefinedModel:
    """Write a model down, once.

    >>> zero = ModelDefinition(architecture=Softmax(inputs=1, classes=2), theta=np.zeros(4))
    >>> define_model(zero).definition[:6].hex()
    '0a0408011002'
    """
    message = model_pb2.ModelDefinition(theta=model.theta.astype(DOUBLE).tobytes())
    parts = [model.architecture, *([] if model.features is None else [model.features])]
    for value in parts:
        part = getattr(message, KINDS[type(value)])
        part.SetInParent()
        for each in fields(value):
            setattr(part, each.name, getattr(value, each.name))
    definition = message.SerializeToString(deterministic=True)
    return DefinedModel(model, definition, hash_definition(MODEL_TAG, definition))


def read_model(definition: bytes) -> DefinedModel:
    """Read a model from its bytes. Nothing is imported or run.

    Raises:
        WireError: the bytes are no model.
        UnsupportedError: a model of a kind that this version does not know.
    """
    if len(definition) > LARGEST_MODEL_BYTES:
        raise WireError(f"a model takes at most {LARGEST_MODEL_BYTES} bytes, got {len(definition)}")
    message = model_pb2.ModelDefinition()
    try:
        message.ParseFromString(definition)
    except DecodeError as error:
        raise WireError("not a model: the bytes do not parse") from error
    # A field that this version does not know could change what gradients are taken of.
    understood = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != understood:
        raise UnsupportedError("the model has fields that this version does not know")
    kind = message.WhichOneof("architecture")
    if kind is None:
        raise WireError("not a valid model: it has no architecture")
    try:
        architecture = _part(message, kind, ARCHITECTURES)
        mapped = message.WhichOneof("features")
        features = None if mapped is None else _part(message, mapped, FEATURES)
        if len(message.theta) != architecture.parameters * DOUBLE.itemsize:
            raise ParameterError(
                "theta",
                f"{len(message.theta)} bytes",
                f"{architecture.parameters} numbers of {DOUBLE.itemsize} bytes",
            )
        theta = np.frombuffer(message.theta, dtype=DOUBLE).astype(np.float64)
        model = ModelDefinition(architecture=architecture, features=features, theta=theta)
    except ParameterError as error:
        raise WireError(f"not a valid model: {error}") from error
    return DefinedModel(model, definition, hash_definition(MODEL_TAG, definition))


Kind = TypeVar("Kind", Architecture, Features)


def _part(message: model_pb2.ModelDefinition, kind: str, kinds: Mapping[str, type[Kind]]) -> Kind:
    """The value that one field of a message describes; fields are called alike in both."""
    part, make = getattr(message, kind), kinds[kind]
    return make(**{each.name: getattr(part, each.name) for each in fields(make)})


def _one_of(kinds: Mapping[str, type]) -> str:
    return "one of " + ", ".join(make.__name__ for make in kinds.values())
