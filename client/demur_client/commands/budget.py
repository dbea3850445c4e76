"""Commands that need no more than a device's installation."""

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demur_client.budget.answers import Answer


BUDGET = """\
Say what a privacy budget buys. Every question is answered in all grades, against the zero-out
neighbour and between any two people, and every number is rounded to the safe side."""

GIVEN = ("mu", "rho", "pure", "renyi", "order", "sigma", "answers", "clip", "epsilon", "delta")


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `budget`."""
    budget = subparsers.add_parser("budget", help="say what a budget buys", description=BUDGET)
    questions = budget.add_subparsers(
        title="questions", dest="question", required=True, metavar="QUESTION"
    )
    _add_epsilon(questions.add_parser("epsilon", help="what ε is this?"))
    _add_sigma(questions.add_parser("sigma", help="what noise do I need?"))
    _add_rounds(questions.add_parser("rounds", help="how many rounds fit?"))


def _add_epsilon(question: argparse.ArgumentParser) -> None:
    question.description = "The ε of a budget, or of so many answers, at a given δ."
    budget = question.add_mutually_exclusive_group(required=True)
    _number(budget, "--mu", "GDP budget μ")
    _number(budget, "--rho", "zCDP budget ρ, nats")
    _number(budget, "--pure", "ε of pure differential privacy, nats")
    _number(budget, "--renyi", "Rényi divergence in nats, at --order")
    _number(budget, "--sigma", "noise, of --answers of norm --clip; data units")
    _number(question, "--order", "Rényi order α, above 1; with --renyi")
    _count(question, "--answers", "answers at the full clip; with --sigma")
    _number(question, "--clip", "ℓ₂ norm of the largest answer, data units (default: 1)")
    _number(question, "--delta", "δ, a probability", required=True)
    _finish(question, run_budget_epsilon)


def _add_sigma(question: argparse.ArgumentParser) -> None:
    question.description = "The least Gaussian noise under which so many answers keep (ε, δ)."
    _number(question, "--epsilon", "ε, nats", required=True)
    _number(question, "--delta", "δ, a probability", required=True)
    _count(question, "--answers", "answers at the full clip", required=True)
    _number(question, "--clip", "ℓ₂ norm of the largest answer, data units (default: 1)")
    _finish(question, run_budget_sigma)


def _add_rounds(question: argparse.ArgumentParser) -> None:
    question.description = "How many answers, or rounds of pure differential privacy, keep (ε, δ)."
    _number(question, "--epsilon", "ε, nats", required=True)
    _number(question, "--delta", "δ, a probability", required=True)
    each = question.add_mutually_exclusive_group(required=True)
    _number(each, "--sigma", "noise of each answer, data units")
    _number(each, "--pure", "ε of each round, nats; any mechanism")
    _number(question, "--clip", "ℓ₂ norm of the largest answer, data units (default: 1)")
    _finish(question, run_budget_rounds)


def run_budget_epsilon(options: argparse.Namespace) -> int:
    """Run `demur budget epsilon`."""
    from demur_client.budget import answers

    _together(options, "sigma", "answers", required=True)
    _together(options, "sigma", "clip")
    _together(options, "renyi", "order", required=True)
    if options.mu is not None:
        answer = answers.epsilon_of_mu(options.mu, delta=options.delta)
    elif options.rho is not None:
        answer = answers.epsilon_of_rho(options.rho, delta=options.delta)
    elif options.pure is not None:
        answer = answers.epsilon_of_pure(options.pure, delta=options.delta)
    elif options.renyi is not None:
        answer = answers.epsilon_of_renyi(options.renyi, order=options.order, delta=options.delta)
    else:
        answer = answers.epsilon_of_answers(
            options.answers, clip=_clip(options), sigma=options.sigma, delta=options.delta
        )
    return _print_answer(answer, options)


def run_budget_sigma(options: argparse.Namespace) -> int:
    """Run `demur budget sigma`."""
    from demur_client.budget import answers

    answer = answers.sigma_of_target(
        options.answers, clip=_clip(options), epsilon=options.epsilon, delta=options.delta
    )
    return _print_answer(answer, options)


def run_budget_rounds(options: argparse.Namespace) -> int:
    """Run `demur budget rounds`."""
    from demur_client.budget import answers

    _together(options, "sigma", "clip")
    target = {"epsilon": options.epsilon, "delta": options.delta}
    if options.pure is not None:
        answer = answers.rounds_of_pure(options.pure, **target)
    else:
        answer = answers.rounds_of_target(sigma=options.sigma, clip=_clip(options), **target)
    return _print_answer(answer, options)


def _number(
    parser: argparse._ActionsContainer, name: str, purpose: str, *, required: bool = False
) -> None:
    parser.add_argument(name, type=float, metavar="X", help=purpose, required=required)


def _count(
    parser: argparse.ArgumentParser, name: str, purpose: str, *, required: bool = False
) -> None:
    parser.add_argument(name, type=int, metavar="N", help=purpose, required=required)


def _finish(question: argparse.ArgumentParser, run: Any) -> None:
    question.add_argument("--json", action="store_true", help="print one JSON object")
    question.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks"
    )
    question.set_defaults(run=run, usage_error=question.error)


def _together(
    options: argparse.Namespace, main: str, other: str, *, required: bool = False
) -> None:
    """Refuse an option that says nothing without another, or the other way round."""
    has_main, has_other = (getattr(options, name) is not None for name in (main, other))
    if has_other and not has_main:
        options.usage_error(f"--{other} goes with --{main}")
    if required and has_main and not has_other:
        options.usage_error(f"--{main} needs --{other}")


def _clip(options: argparse.Namespace) -> float:
    return 1.0 if options.clip is None else float(options.clip)


def _print_answer(answer: "Answer", options: argparse.Namespace) -> int:
    from demur_client.commands import formatting

    if options.json:
        given = {name: getattr(options, name, None) for name in GIVEN}
        print(json.dumps(formatting.answer_fields(answer, given)))
    else:
        print(formatting.answer_text(answer))
    return 0
