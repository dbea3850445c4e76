"""What the tests of models at a collector share: a study of gradients, a model, rounds about it."""

import numpy as np

from demur_proto.models.architectures import Softmax
from demur_proto.models.definition import DefinedModel, ModelDefinition, define_model
from demur_proto.queries import ErrorCount, Gradient
from demur_proto.round import Round, round_of
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
    return define_round(
        round_of(STUDY, Gradient(model_hash=model.hash, dimension=dimension), number=number)
    )


def counting(model: DefinedModel, number: int = 1, *, parameters: int = 6) -> Defined[Round]:
    return define_round(
        round_of(COUNTS, ErrorCount(model_hash=model.hash, parameters=parameters), number=number)
    )
