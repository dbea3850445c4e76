"""What the tests of models at a collector share: a study of gradients, a model, rounds about it."""

import numpy as np

from demur_proto.asking import next_error_count, next_gradient
from demur_proto.models.architectures import Softmax
from demur_proto.models.definition import DefinedModel, ModelDefinition, define_model
from demur_proto.round import Round
from demur_proto.study import Purpose, design_study
from demur_proto.wire.definition import Defined, define_round, define_study

DEADLINE_S = 10.0


def a_model(number: int = 0, *, inputs: int = 2) -> DefinedModel:
    architecture = Softmax(inputs=inputs, classes=2)
    theta = np.full(architecture.parameters, float(number))
    return define_model(ModelDefinition(architecture=architecture, theta=theta))


STUDY = define_study(
    design_study(
        name="learning",
        epsilon=1.0,
        delta=1e-6,
        answers=3,
        minimum_cohort=2,
        grid_exponent=-15,
        maximum_dimension=1 << 18,
    )
)
COUNTS = define_study(
    design_study(
        name="errors",
        epsilon=1.0,
        delta=1e-6,
        answers=3,
        minimum_cohort=2,
        grid_exponent=-15,
        purpose=Purpose.ERRORS,
    )
)
MODEL = a_model()


def asking(model: DefinedModel, number: int = 1, *, dimension: int = 6) -> Defined[Round]:
    return define_round(next_gradient(STUDY, model.hash, number=number, dimension=dimension))


def counting(model: DefinedModel, number: int = 1, *, parameters: int = 6) -> Defined[Round]:
    return define_round(next_error_count(COUNTS, model.hash, number=number, parameters=parameters))
