"""What a person reads when a training has ended."""

from pathlib import Path

from demur_proto.outward import text_up
from demur_proto.study import View
from demur_sim.training.files import MODEL
from demur_sim.training.results import TrainingResult, binomial_error
from demur_sim.training.scenario_parts import Arithmetic


def report(result: TrainingResult, folder: Path) -> str:
    """A training in a few lines.

    Args:
        result: what to tell of.
        folder: where its files are.
    """
    guarantee = result.design.guarantee
    scenario = result.scenario
    error = binomial_error(result.test_accuracy, result.tested)
    rows = {
        "guarantee": (
            f"({text_up(guarantee.epsilon)}, {text_up(guarantee.delta)}), unit one device, "
            f"neighbour zero-out, view {guarantee.view}"
        ),
        "not included": "tuning: what was tried in order to choose the settings",
        "accuracy": (
            f"{result.test_accuracy:.2%} of {result.tested:,} examples to test on "
            f"(± {1.96 * error:.2%})"
        ),
        "steps": f"{result.steps}, model of step {result.state.final_step}: {result.state.ended}",
        "noise": (
            f"standard error {result.sigma:,.1f} of each of {len(result.theta):,} sums, "
            f"clip {scenario.clip:g}"
        ),
        "arithmetic": str(scenario.arithmetic),
        "simulated": "with seeded noise, so the run itself protects nobody",
        "refused once": f"{result.exhausted_fraction:.2%} of devices (only a simulator knows this)",
        "took": f"{result.wall_s:.1f} s",
    }
    if scenario.arithmetic is Arithmetic.FLOAT:
        rows["trusted"] = "whoever adds up, who sees gradients without noise"
    elif guarantee.view is View.AGGREGATE and guarantee.per_report_mu is not None:
        alone = text_up(guarantee.per_report_mu, digits=2)
        rows["trusted"] = f"the collector: one report on its own is only {alone}-GDP"
    rows |= {
        "results": f"{folder}/summary.json",
        "model": f"{folder}/{MODEL}",
        "picture": f"{folder}/plot.png",
    }
    size = f"{result.devices:,} devices, {scenario.algorithm}"
    lines = [
        scenario.title or scenario.name,
        f"  {size}, fidelity {result.fidelity}, seed {result.seed}",
        *(f"  {label:15}  {text}" for label, text in rows.items()),
    ]
    return "\n".join(lines)
