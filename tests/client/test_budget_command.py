import argparse
import json
import math
import subprocess
import sys
from statistics import NormalDist
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_client.budget import answers as budget_answers
from demur_client.commands.budget import add_commands
from demur_proto.errors import ParameterError
from demur_proto.guarantee import NEIGHBOUR, UNIT

QUESTIONS = [
    "epsilon --mu 0.24 --delta 1e-6",
    "epsilon --rho 0.0288 --delta 1e-6",
    "epsilon --pure 1 --delta 0.01",
    "epsilon --renyi 0.5 --order 8 --delta 1e-6",
    "epsilon --sigma 16.4 --answers 15 --delta 1e-6",
    "sigma --epsilon 1 --delta 1e-6 --answers 15",
    "sigma --epsilon 1 --delta 1e-6 --answers 15 --clip 2",
    "rounds --epsilon 1 --delta 1e-6 --sigma 16.4",
    "rounds --epsilon 1 --delta 1e-6 --sigma 16.4 --clip 0.5",
    "rounds --epsilon 1 --delta 1e-5 --pure 0.01",
]


def run(question: str) -> int:
    """Run `demur budget` in this process."""
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers(required=True))
    options = parser.parse_args(["budget", *question.split()])
    return int(options.run(options))


def ask(question: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Ask for JSON."""
    assert run(f"{question} --json") == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def column(answer: dict[str, Any], name: str) -> dict[str, float]:
    return {row["grade"]: row[name] for row in answer["answers"]}


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ of the Gaussian trade-off, by the standard library."""
    cdf = NormalDist().cdf
    return cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * cdf(-mu / 2 - epsilon / mu)


# What is printed.


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_table_labels_every_number(question: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(question) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("?")
    assert lines[2].split()[:2] == ["grade", "budget"]
    assert lines[2].endswith("two people")
    text = "\n".join(lines)
    assert f"unit       {UNIT}" in text
    assert f"neighbour  {NEIGHBOUR}" in text
    assert "           two people: " in text
    assert "view       " in text
    assert "rounded    " in text
    assert all(len(line) <= 100 for line in lines)


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_printed_number_is_on_the_safe_side_of_the_json(
    question: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = ask(question, capsys)
    run(question)
    lines = capsys.readouterr().out.splitlines()
    table = lines[3 : lines.index("", 3)]

    assert len(table) == len(answer["answers"])
    for line, row in zip(table, answer["answers"], strict=True):
        assert line.startswith(row["grade"])
        cells = line.removeprefix(row["grade"]).split()
        *_, budget, zero_out, two_people = (cell.replace(",", "") for cell in cells)
        spent = answer["quantity"] == "epsilon"
        assert float(budget) >= row["budget"] if spent else float(budget) <= row["budget"]
        assert float(budget) == pytest.approx(row["budget"], rel=1e-5)
        for cell, value in ((zero_out, row["zero_out"]), (two_people, row["two_people"])):
            assert float(cell) >= value
            assert float(cell) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("question", QUESTIONS)
def test_json_repeats_what_was_given_and_says_what_it_means(
    question: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = question.replace("--", "").split()
    given = {name: float(value) for name, value in zip(words[1::2], words[2::2], strict=True)}

    answer = ask(question, capsys)

    assert answer["given"] == given
    assert answer["quantity"] == words[0]
    assert answer["unit"] == UNIT
    assert set(answer["neighbours"]) == {"zero_out", "two_people"}
    assert answer["view"]
    assert answer["rounding"]


# What is true.


def test_epsilon_of_a_gdp_budget(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask("epsilon --mu 0.24 --delta 1e-6", capsys)

    zero_out, two_people = column(answer, "zero_out"), column(answer, "two_people")
    assert gaussian_delta(0.24, zero_out["exact"]) == pytest.approx(1e-6, rel=1e-6)
    assert gaussian_delta(0.48, two_people["exact"]) == pytest.approx(1e-6, rel=1e-6)
    level, rho = math.log(1e6), 0.24**2 / 2
    assert zero_out["simple"] == pytest.approx(rho + 2 * math.sqrt(rho * level))
    assert two_people["simple"] == pytest.approx(4 * rho + 4 * math.sqrt(rho * level))
    for numbers in (zero_out, two_people):
        assert numbers["exact"] < numbers["improved"] < numbers["simple"]


def test_a_zcdp_budget_has_no_exact_grade(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask("epsilon --rho 0.0288 --delta 1e-6", capsys)

    assert [row["grade"] for row in answer["answers"]] == ["improved", "simple"]


def test_epsilon_of_a_divergence_at_one_order(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask("epsilon --renyi 0.5 --order 8 --delta 1e-6", capsys)

    simple = answer["answers"][1]
    assert simple["measure"] == "renyi(8)"
    assert simple["zero_out"] == pytest.approx(0.5 + math.log(1e6) / 7)
    assert simple["two_people"] == pytest.approx(0.5 * 13 / 6 + math.log(1e6) / 3)


@pytest.mark.parametrize("order", ["1.5", "2"])
def test_a_low_order_says_nothing_about_two_people(
    order: str, capsys: pytest.CaptureFixture[str]
) -> None:
    question = f"epsilon --renyi 0.5 --order {order} --delta 1e-6"

    assert set(column(ask(question, capsys), "two_people").values()) == {None}
    run(question)
    assert capsys.readouterr().out.splitlines()[3].endswith(" -")


def test_an_infinite_order_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask("epsilon --renyi 0.5 --order inf --delta 1e-6", capsys)

    assert answer["given"]["order"] == "inf"
    assert column(answer, "two_people") == {"improved": 1.0, "simple": 1.0}


def test_the_noise_that_fifteen_answers_need(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask("sigma --epsilon 1 --delta 1e-6 --answers 15", capsys)

    zero_out, two_people = column(answer, "zero_out"), column(answer, "two_people")
    assert {grade: round(sigma, 1) for grade, sigma in zero_out.items()} == {
        "exact": 16.4,
        "improved": 17.5,
        "simple": 20.7,
    }
    for grade, sigma in zero_out.items():
        assert two_people[grade] == pytest.approx(2 * sigma)


@settings(max_examples=40)
@given(
    answers=st.integers(1, 10_000),
    clip=st.floats(1e-3, 1e3),
    epsilon=st.floats(0.01, 10.0),
    delta=st.floats(1e-12, 1e-2),
)
def test_the_three_questions_agree(answers: int, clip: float, epsilon: float, delta: float) -> None:
    noise = budget_answers.sigma_of_target(answers, clip=clip, epsilon=epsilon, delta=delta)

    for at, row in enumerate(noise.rows):
        for who in ("zero_out", "two_people"):
            sigma = getattr(row, who)
            fit = budget_answers.rounds_of_target(
                sigma=sigma, clip=clip, epsilon=epsilon, delta=delta
            )
            spent = budget_answers.epsilon_of_answers(answers, clip=clip, sigma=sigma, delta=delta)
            assert fit.rows[at].grade == spent.rows[at].grade == row.grade
            assert getattr(fit.rows[at], who) >= answers
            assert getattr(spent.rows[at], who) == pytest.approx(epsilon, rel=1e-9)


def test_rounds_of_pure_privacy_by_every_filter(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask("rounds --epsilon 1 --delta 1e-5 --pure 0.01", capsys)

    assert column(answer, "zero_out") == {
        "composed": 720,
        "improved, tight": 611,
        "improved, quadratic": 611,
        "simple, tight": 416,
        "simple, quadratic": 416,
        "Whitehouse et al. 2023": 416,
        "Rogers et al. 2016": 185,
        "sum": 100,
    }
    assert column(answer, "two_people")["sum"] == 50


def test_decimals_are_taken_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask("rounds --epsilon 1 --delta 1e-5 --pure 0.1", capsys)

    assert column(answer, "zero_out")["sum"] == 10


def test_a_filter_without_a_proof_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask("rounds --epsilon 1 --delta 0.5 --pure 0.1", capsys)

    assert "Rogers et al. 2016" not in column(answer, "zero_out")


# What is refused.


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("epsilon --delta 1e-6", "one of the arguments --mu --rho --pure --renyi --sigma"),
        ("epsilon --mu 1 --rho 1 --delta 1e-6", "not allowed with argument"),
        ("epsilon --mu 1", "required: --delta"),
        ("epsilon --mu much --delta 1e-6", "invalid float value: 'much'"),
        ("epsilon --sigma 1 --delta 1e-6", "--sigma needs --answers"),
        ("epsilon --mu 1 --answers 3 --delta 1e-6", "--answers goes with --sigma"),
        ("epsilon --mu 1 --clip 3 --delta 1e-6", "--clip goes with --sigma"),
        ("epsilon --renyi 1 --delta 1e-6", "--renyi needs --order"),
        ("epsilon --mu 1 --order 3 --delta 1e-6", "--order goes with --renyi"),
        ("sigma --epsilon 1 --delta 1e-6", "required: --answers"),
        ("sigma --epsilon 1 --delta 1e-6 --answers 1.5", "invalid int value: '1.5'"),
        ("rounds --epsilon 1 --delta 1e-6", "one of the arguments --sigma --pure is required"),
        ("rounds --epsilon 1 --delta 1e-6 --pure 1 --clip 2", "--clip goes with --sigma"),
        ("", "required: QUESTION"),
    ],
)
def test_options_that_make_no_question_are_bad_usage(
    question: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(question)

    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("epsilon --mu nan --delta 1e-6", "mu"),
        ("epsilon --mu -1 --delta 1e-6", "mu"),
        ("epsilon --mu 1 --delta 0", "delta"),
        ("epsilon --mu 1 --delta 1", "delta"),
        ("epsilon --rho inf --delta 1e-6", "rho"),
        ("epsilon --pure -1 --delta 1e-6", "pure"),
        ("epsilon --renyi inf --order 1.5 --delta 1e-6", "renyi"),
        ("epsilon --renyi 1 --order 1 --delta 1e-6", "order"),
        ("epsilon --renyi 1 --order nan --delta 1e-6", "order"),
        ("epsilon --sigma 0 --answers 1 --delta 1e-6", "sigma"),
        ("epsilon --sigma 1 --answers 0 --delta 1e-6", "answers"),
        ("sigma --epsilon inf --delta 1e-6 --answers 1", "epsilon"),
        ("sigma --epsilon 1 --delta 1e-6 --answers -1", "answers"),
        ("sigma --epsilon 1 --delta 1e-6 --answers 1 --clip 0", "clip"),
        ("rounds --epsilon 1 --delta 1e-6 --sigma nan", "sigma"),
        ("rounds --epsilon nan --delta 1e-6 --pure 1", "epsilon"),
        ("rounds --epsilon 1 --delta 1e-6 --pure nan", "round_epsilon"),
        ("rounds --epsilon 1 --delta 2 --pure 1", "delta"),
    ],
)
@pytest.mark.parametrize("as_json", ["", " --json"])
def test_a_number_outside_its_range_is_refused_by_name(
    question: str, name: str, as_json: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ParameterError) as caught:
        run(question + as_json)

    assert caught.value.name == name
    assert capsys.readouterr().out == ""


def test_answering_needs_nothing_but_the_standard_library() -> None:
    program = (
        "import argparse, sys\n"
        "from demur_client.commands.budget import add_commands\n"
        "parser = argparse.ArgumentParser()\n"
        "add_commands(parser.add_subparsers())\n"
        "options = parser.parse_args('budget epsilon --mu 1 --delta 1e-6'.split())\n"
        "assert options.run(options) == 0\n"
        "assert not {'numpy', 'grpc', 'demur_sim', 'demur_server'} & sys.modules.keys()\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
