"""What a device in any language must reproduce of running counts: `tests/golden/running_counts.json`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counting_kit import a_study, chain_of
from demur_client.budget.filters import Filter
from demur_client.budget.running_counts import RunningState
from demur_proto.running.factorisations import factors_of
from demur_proto.running.segments import Factorisation
from demur_proto.study import Policy

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "golden" / "running_counts.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("kind", list(Factorisation))
def test_rows_are_those_of_the_vectors(kind: Factorisation) -> None:
    horizon, exponent = GOLDEN["horizon"], GOLDEN["grid_exponent"]
    factors = factors_of(kind, horizon=horizon, exponent=exponent)

    rows = [factors.row(position).tolist() for position in range(1, horizon + 1)]

    assert rows == GOLDEN["rows"][kind.value]


@pytest.mark.parametrize(
    "vector",
    [*GOLDEN["transcripts"], *GOLDEN["segments"]],
    ids=lambda each: f"{each['factorisation']} {each.get('horizons', '')}",
)
def test_a_device_says_and_holds_what_the_vectors_say(vector: dict[str, Any]) -> None:
    kind = Factorisation(vector["factorisation"])
    horizons = vector.get("horizons", [GOLDEN["horizon"]])
    rounds = chain_of(a_study(answers=12), horizons, kind=kind, bound=vector["bound"])
    weight = rounds[0].value.weight
    mine = Filter(budget_units=weight * vector["budget_units"], policy=Policy.SKIP)
    state = RunningState()

    words, left = [], []
    for asked, now in zip(rounds, vector["states"], strict=True):
        if asked.value.number in vector.get("missed", []):
            continue
        value = np.nan if now is None else float(now)
        told = state.answer(asked.value, np.array([[value]]), mine)
        state = told.state
        words.append(told.word)
        left.append(mine.remaining_units // weight)

    assert (words, left) == (vector["words"], vector["left"])
    assert mine.ever_refused  # or this says nothing of refusals
