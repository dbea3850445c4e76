"""What a question is, and what cannot be asked, before anybody is called."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from counting_kit import dense
from demur_proto.accounting.histograms import design_histogram_study
from demur_proto.errors import DemurError, ParameterError, StateError, StorageError
from demur_proto.queries import Feature
from demur_proto.running.segments import Factorisation
from demur_proto.study import Measure, Study, design_study
from demur_proto.wire.definition import define_study
from demur_server.commands.ask import add_commands
from demur_server.commands.question import Question
from demur_server.parsing import read_features

K = ("--categories", "4")


def test_a_new_study_for_a_running_count_has_room_for_changes_in_the_longest_segment() -> None:
    def study(**given: Any) -> Study:
        told = {"minimum_cohort": 9, "answers": 3, "running": True, **given}
        return Question.read([Feature(name="x")], told).study([], "new")

    def room(made: Study, horizon: int) -> float:
        steps = dense(Factorisation.SQUARE_ROOT, horizon)[:, 0].tolist()
        return float(made.budget_units / made.base_weight / sum(step**2 for step in steps))

    assert room(study(horizon=64), 64) == pytest.approx(3, rel=1e-6)
    assert room(study(horizon=7, segment=1), 4) == pytest.approx(3, rel=1e-6)
    assert room(study(horizon=64, bound=2), 64) == pytest.approx(12, rel=1e-6)
    assert 3 < room(study(), 1024) < 4  # 2^14 rounds may come
    for wrong, said in (({"grid_exponent": -7}, "exponent"), ({"bound": 1 << 14}, "bound")):
        with pytest.raises(ParameterError, match=said):
            study(**wrong)


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (["period=3"], ParameterError, r"^feature must be a name first, then its parameters"),
        (["active", "period=x"], ParameterError, r"^parameter period must be a number, got 'x'"),
        (["active", "--credential", "none"], StorageError, "the credential none cannot be read"),
        (["active", "--key", "none"], ParameterError, r"^--ca must be given with"),
        (["active", "--timeout", "nan"], ParameterError, r"^--timeout must be a finite number > 0"),
        (["active", "--timeout", "0"], ParameterError, r"^--timeout must be a finite number > 0"),
        (
            ["active", "--answer-after-ms", "0"],
            ParameterError,
            "^--answer-after-ms must be an integer >= 1 and <= 86400000, got 0",
        ),
        (
            ["active", "--answer-after-ms", "60000"],
            ParameterError,
            "^--timeout must be longer than the 60 s after which devices answer, got 60.0",
        ),
        (["active", "--reports", "-1"], ParameterError, r"^--reports must be an integer >= 0"),
        (["active", "--view", "all"], ParameterError, "^--view must be local or aggregate"),
        (["active", "--answers", "0"], ParameterError, "^--answers must be an integer >= 1"),
        (["active", "--mechanism", "oue"], ParameterError, "given with --categories only"),
        (["app", *K, "--clip", "2"], ParameterError, "^--clip must be left out with it"),
        (["app", *K, "--on-grid"], ParameterError, "^--on-grid must be left out with it"),
        (["app", *K, "--dimension", "4"], ParameterError, "^--dimension must be left out"),
        (["app", "other", *K], ParameterError, "^question must be one feature, which gives"),
        (
            ["rode", "5"],
            ParameterError,
            "^feature must be a name; a parameter is .* KEY=VALUE, got '5'",
        ),
        (
            ["x", "--weights", "1,a"],
            ParameterError,
            "^--weights must be rows of numbers, as in 1,0",
        ),
        (["x", *K, "--weights", "1"], ParameterError, "^--weights must be left out with it"),
        (["on", "--segment", "4"], ParameterError, "^--segment must be given with --running only"),
        (["on", "--anew"], ParameterError, "^--anew must be given with --running only"),
        (
            ["on", "off", "--running"],
            ParameterError,
            "^question must be one feature, which is the st",
        ),
        (["on", "--running", *K], ParameterError, "^--categories must be left out with --running"),
        (["on", "--running", "--clip", "2"], ParameterError, "^--clip must be left out with --run"),
        (
            ["on", "--running", "--segment", "0"],
            ParameterError,
            "^--segment must be an integer >= 1",
        ),
        (["on", "--running", "--bound", "0"], ParameterError, "^--bound must be an integer >= 1"),
        (["on", "--running", "--cohort", "0"], ParameterError, "^--cohort must be an integer >= 1"),
        (
            ["on", "--running", "--policy", "clip"],
            ParameterError,
            "^--policy must be skip or retire",
        ),
        (["app", "--categories", "0"], ParameterError, "^--categories must be an integer >= 1"),
        (["app", *K, "--mechanism", "rr"], ParameterError, "^--mechanism must be krr or sue or"),
        (["app", *K, "--question-epsilon", "0"], ParameterError, "^--question-epsilon must be a f"),
        (
            ["app", *K, "--question-epsilon", "1", "--answers", "3"],
            ParameterError,
            "^--answers must be left out with --question-epsilon",
        ),
        (
            ["active"],
            StateError,
            r"^no collector runs on the folder .*, or say --target HOST:PORT$",
        ),
    ],
)
def test_what_cannot_be_asked_is_said_before_anybody_is_called(
    words: list[str], kind: type[DemurError], said: str, tmp_path: Path
) -> None:
    target = [] if words == ["active"] else ["--target", "127.0.0.1:1"]
    parser = argparse.ArgumentParser(prog="demur")
    add_commands(parser.add_subparsers())
    options = parser.parse_args(["ask", *words, "--folder", str(tmp_path), *target])

    with pytest.raises(kind, match=said):
        options.run(options)


def test_a_study_of_sums_is_not_asked_for_a_histogram_nor_the_reverse() -> None:
    sums = design_study(name="sums", epsilon=1.0, delta=1e-6, answers=3, minimum_cohort=2)
    found = [define_study(sums), define_study(APPS)]

    with pytest.raises(ParameterError, match=r"^question must be a histogram, with --categories"):
        Question.read([Feature(name="x")], {}).study(found, "apps")
    with pytest.raises(ParameterError, match=r"with --categories, .* got 'a running count'"):
        Question.read([Feature(name="x")], {"running": True}).study(found, "apps")
    with pytest.raises(ParameterError, match=r"^question must be a sum, without --categories"):
        Question.read([Feature(name="x")], {"categories": 4}).study(found, "sums")


APPS = design_histogram_study(name="apps", epsilon=1.0, delta=1e-6, minimum_cohort=2, categories=4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"view": "aggregate"}, "^--view must be local with --categories, got "),
        ({"measure": "gdp"}, "^--measure must be pure or zcdp or answers with --categories, got "),
        ({"maximum_dimension": 3}, "^--maximum-dimension must be 4 categories, got 3"),
        ({"policy": "clip"}, "policy"),
    ],
)
def test_a_new_study_of_histograms_is_not_told_what_it_cannot_be(
    given: dict[str, object], said: str
) -> None:
    options = {"categories": 4, "minimum_cohort": 2, **given}

    question = Question.read([Feature(name="app")], options)

    with pytest.raises(ParameterError, match=said):
        question.study([], "new")


def test_to_a_study_of_histograms_a_question_may_say_how_many_answers_it_leaves_room_for() -> None:
    found = [define_study(APPS)]
    question = Question.read([Feature(name="app")], {"categories": 4, "answers": 7, "epsilon": 1.0})
    other = Question.read([Feature(name="app")], {"categories": 4, "epsilon": 2.0})

    assert question.study(found, "apps") == APPS
    with pytest.raises(ParameterError, match=r"^--epsilon must be 1.0, as the study 'apps' says"):
        other.study(found, "apps")


def test_features_are_read_with_their_parameters() -> None:
    one, two = read_features(["active", "period=3", "threshold=-0.5", "amount"])

    assert (one.name, dict(one.parameters)) == ("active", {"period": 3.0, "threshold": -0.5})
    assert (two.name, dict(two.parameters)) == ("amount", {})


@pytest.mark.parametrize(
    ("given", "measure", "budget"),
    [
        ({"answers": 1}, Measure.PURE, 1.0),
        ({"answers": 26}, Measure.ANSWERS, 26.0),
        ({"answers": 26, "mechanism": "krr"}, Measure.ZCDP, pytest.approx(0.0244, abs=1e-4)),
        ({"answers": 26, "measure": "pure"}, Measure.PURE, 1.0),
        ({"answers": 26, "measure": "pure", "delta": 0.0}, Measure.PURE, 1.0),
        ({"answers": 7, "measure": "answers"}, Measure.ANSWERS, 7.0),
        ({"question_epsilon": 0.05, "categories": 1}, Measure.ANSWERS, 26.0),
        (
            {"question_epsilon": 0.05, "categories": 1, "measure": "zcdp"},
            Measure.ZCDP,
            pytest.approx(0.0244, abs=1e-4),
        ),
    ],
)
def test_a_new_study_of_histograms_counts_in_what_gives_its_answers_most(
    given: dict[str, Any], measure: Measure, budget: Any
) -> None:
    options = {"categories": 64, "minimum_cohort": 2, **given}

    study = Question.read([Feature(name="app")], options).study([], "apps")

    assert (study.measure, study.budget) == (measure, budget)
    assert study.maximum_dimension == options["categories"]
