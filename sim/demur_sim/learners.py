"""What computes with a model in a simulation: what devices have, and modules of torch."""

import threading
from typing import final

from demur_proto.gradients import model_of
from demur_proto.models.base import Model
from demur_proto.models.definition import ModelDefinition, Module
from demur_sim.torch_models import TorchModel


@final
class Learners:
    """Finds it by a model's definition. A module of torch is imported once; safe under threads."""

    def __init__(self) -> None:
        self._modules: dict[Module, TorchModel] = {}
        self._lock = threading.Lock()

    def of(self, definition: ModelDefinition) -> Model:
        """What can compute gradients and errors of it.

        Raises:
            UnsupportedError: it is a module of torch, which is not installed.
            ParameterError: there is no such module.
        """
        module = definition.architecture
        if not isinstance(module, Module):
            return model_of(definition)
        with self._lock:
            if module not in self._modules:
                self._modules[module] = TorchModel(module=module)
            return self._modules[module]
