"""Private gradient descent on MNIST with and without individual filters, as in the paper's tables.

Six settings at each of three ε: tuned, with too large a clip, and with too little noise (so that fewer
steps fit), each without filtering (private-gd: everyone pays for a full answer in each step) and with
it (filtered-gd: everyone pays for their own gradient, so there are more steps for the same budget).
Arithmetic float, view aggregate, one digit for each person. Accuracies are those of the last iterate.

    python benchmarks/paper_tables.py --data FOLDER --cells 0.3/tuned 0.3/clip --seeds 1 2

Needs the extra torch, and uses a GPU where torch sees one. A run that was stopped goes on where it was
when it is started again; one that has ended is not run again. The table holds all that has ended.

Source: Feldman & Zrnic 2021, arXiv:2008.11193, section 5 and appendix, for the settings called tuned.
Those of the other two were not at hand and are chosen here, with the same ρ = k/(2σ²): four times the
clip and a quarter of the rate, so that a step is as noisy as before and goes a quarter of the way; or
half the σ and so a quarter of the steps. How many steps a run with filtering takes is chosen here too.
What was looked at before is told in docs/training.md.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from demur_proto.accounting import conversions
from demur_proto.accounting.numerics import root_up
from demur_proto.arrays import Vector
from demur_proto.errors import DemurError
from demur_proto.models.definition import ModelDefinition
from demur_proto.models.features import Pixels
from demur_proto.study import Measure, Policy, Study, View
from demur_sim.datasets.digits import load_mnist
from demur_sim.datasets.labelled import Labelled
from demur_sim.engine.float_cohort import FloatCohort, float_statement
from demur_sim.engine.sampling import Purpose, stream
from demur_sim.people.labelled import LabelledPeople
from demur_sim.training.design import TUNING
from demur_sim.training.torch_networks import TWO_CONVOLUTIONS

OUT = Path(__file__).parent / "out" / "paper_tables"
DELTA = 1e-5
EVALUATE_EVERY = 8
EXPONENT = -12  #: of the budget's unit; any that divides C will do, as nothing is rounded to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One number of the tables."""

    epsilon: float  #: as the paper prints it; see `simple_epsilon`
    setting: str  #: tuned, clip or noise
    filtering: bool
    sigma: float  #: noise for each unit of clip
    clip: float
    rate: float  #: η
    fitting: int  #: k, how many full answers fit the budget
    steps: int
    paper: tuple[float, float] | None  #: per cent, and standard deviation; None: not at hand

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        return f"{self.epsilon:g}/{self.setting}/{'with' if self.filtering else 'without'}"

    @property
    def shared_name(self) -> str:
        """Of what both runs of a pair share until a budget binds, with all that it follows from."""
        return (
            f"{self.epsilon:g}-{self.setting}-sigma{self.sigma:g}-clip{self.clip:g}"
            f"-rate{self.rate:g}-k{self.fitting}"
        )

    @property
    def file_name(self) -> str:
        """Of its files: other settings have others, so that no run goes on from theirs."""
        filtering = "with" if self.filtering else "without"
        return f"{self.shared_name}-{filtering}-steps{self.steps}"

    @property
    def simple_epsilon(self) -> float:
        """ε by the paper's conversion, ρ + 2√(ρ ln(1/δ)), at δ = 10⁻⁵; rounded."""
        rho = self.fitting / (2 * self.sigma**2)
        return rho + 2 * math.sqrt(rho * math.log(1 / DELTA))

    def study(self, people: int) -> Study:
        """The contract: `fitting` full answers, at noise σC on the sum."""
        noise = self.sigma * self.clip
        exact = Fraction(self.fitting) * Fraction(self.clip) ** 2 / (2 * Fraction(noise) ** 2)
        rho = float(exact)
        while Fraction(rho) < exact:  # so that the last of them fits
            rho = math.nextafter(rho, math.inf)
        # A little more than what ρ alone needs: samplers of real devices have a share of δ.
        epsilon = conversions.zcdp_epsilon(rho, delta=DELTA * (1 - 1e-9)) * (1 + 1e-9)
        return Study(
            name=f"mnist {self.name}",
            view=View.AGGREGATE,
            measure=Measure.ZCDP,
            policy=Policy.CLIP if self.filtering else Policy.RETIRE,
            budget=rho,
            epsilon=epsilon,
            delta=DELTA,
            minimum_cohort=people,
            base_sigma=noise,
            base_grid_exponent=EXPONENT,
            horizon=self.steps,
            maximum_dimension=TWO_CONVOLUTIONS.parameters,
        )


PAPER: dict[tuple[float, str, bool], tuple[float, float]] = {
    (0.3, "tuned", False): (93.29, 0.49),
    (0.3, "tuned", True): (93.64, 0.46),
    (0.3, "clip", False): (84.47, 3.95),
    (0.3, "clip", True): (92.25, 0.91),
}
"""Of the paper's numbers those at hand; arXiv:2008.11193, appendix."""


def cells() -> Iterator[Cell]:
    """All 18."""
    for epsilon, sigma, clip, rate, fitting in (
        (0.3, 170.0, 10.0, 0.2, 112),
        (0.5, 130.0, 15.0, 0.15, 180),
        (1.0, 100.0, 10.0, 0.2, 420),
    ):
        for setting, less_noise, more_clip, longer in (
            ("tuned", 1, 1, Fraction(5, 4)),
            ("clip", 1, 4, Fraction(2)),
            ("noise", 2, 1, Fraction(8)),
        ):
            fits = fitting // less_noise**2
            for filtering in (False, True):
                yield Cell(
                    epsilon=epsilon,
                    setting=setting,
                    filtering=filtering,
                    sigma=sigma / less_noise,
                    clip=clip * more_clip,
                    rate=rate / more_clip,
                    fitting=fits,
                    steps=int(fits * longer) if filtering else fits,
                    paper=PAPER.get((epsilon, setting, filtering)),
                )


class Run:
    """One cell with one seed, which can be stopped at any time."""

    def __init__(self, cell: Cell, seed: int, people: LabelledPeople, *, threads: int) -> None:
        self.cell = cell
        self.seed = seed
        self.threads = threads
        self._people = people
        self._name = f"{cell.file_name}-seed{seed}"

    @property
    def result(self) -> Path:
        """What is left when it has ended."""
        return OUT / f"{self._name}.json"

    @property
    def common(self) -> Path:
        """Where the run with filtering leaves what the one without can start from.

        Until k − 1 full answers are paid for no budget binds, and both have the same θ, bit for bit.
        """
        return OUT / f"{self.cell.shared_name}-seed{self.seed}.npz"

    def train(self, test: Labelled, *, until: int | None = None, quiet: bool = False) -> None:
        """Train, to the end or until a step, and write the result at the end."""
        cell, checkpoint = self.cell, OUT / f"{self._name}.npz"
        study = cell.study(self._people.devices)
        cohort = FloatCohort(
            study,
            self._people,
            clip=cell.clip,
            seed=self.seed,
            worst_case=not cell.filtering,
            threads=self.threads,
        )
        features = Pixels(height=28, width=28)
        blank = ModelDefinition(
            architecture=TWO_CONVOLUTIONS, features=features, theta=np.zeros(26_010)
        )
        model = cohort.model(blank)
        theta = model.initial(stream(self.seed, Purpose.START))
        curve: list[tuple[int, float, int]] = []
        found = [path for path in (checkpoint, self.common) if path.exists()]
        if found:
            with np.load(found[0]) as kept:
                theta, rounds, spent = kept["theta"], int(kept["rounds"]), kept["spent"]
                curve = [(int(at), float(right), int(left)) for at, right, left in kept["curve"]]
                if found[0] == self.common and not cell.filtering:
                    spent = np.full_like(spent, rounds * cohort.full_charge)
                refused = kept["refused"]  # every pixel is finite, so nobody else gave less
                cohort.restore(spent=spent, refused=refused, covered=refused, rounds=rounds)
        inputs, labels = test.inputs(features), test.labels
        last = cell.steps if until is None else min(until, cell.steps)
        while cohort.rounds < last:
            started, number = time.monotonic(), cohort.rounds + 1
            defined = ModelDefinition(architecture=TWO_CONVOLUTIONS, features=features, theta=theta)
            total = cohort.noisy_sum(defined, number=number)
            theta = theta - cell.rate * total / self._people.devices
            told = ""
            if number % EVALUATE_EVERY == 0 or number in (cell.fitting, cell.steps):
                right = 1 - float(model.errors(theta, inputs, labels).mean())
                active = int(np.count_nonzero(~cohort.refused))
                curve.append((number, right, active))
                told = f"  {right:.2%} right  {active} active"
            _replace(checkpoint, cohort, theta, curve)
            if cell.filtering and number == cell.fitting - 1 and not cohort.refused.any():
                _replace(self.common, cohort, theta, curve)
            if not quiet:
                took = time.monotonic() - started
                print(
                    f"{cell.name} seed {self.seed}  step {number}/{cell.steps}  {took:.1f} s{told}",
                    flush=True,
                )
        assert_paid(cohort, study)
        if cohort.rounds < cell.steps:
            return
        row = {
            "cell": cell.name,
            "seed": self.seed,
            "accuracy": curve[-1][1],
            "steps": cell.steps,
            "arithmetic": "float",
            "active_at_the_end": curve[-1][2],
            "largest_share_spent": int(cohort.spent.max()) / study.budget_units,
            "curve": curve,
            "guarantee": statement(study),
            "epsilon_gaussian_exact": conversions.gdp_epsilon(
                root_up(2 * Fraction(study.budget)), delta=DELTA
            ),
        }
        self.result.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")


def statement(study: Study) -> str:
    """What a run promises, and what not."""
    return float_statement(study) + TUNING


def assert_paid(cohort: FloatCohort, study: Study) -> None:
    """Stop if anyone paid more than their budget, which cannot be."""
    if cohort.spent.min() < 0 or cohort.spent.max() > study.budget_units:
        raise SystemExit("a budget was overspent")


def _replace(
    checkpoint: Path, cohort: FloatCohort, theta: Vector, curve: list[tuple[int, float, int]]
) -> None:
    """Write a checkpoint beside the old one, then put it in its place."""
    fresh = checkpoint.with_suffix(".new.npz")
    np.savez(
        fresh,
        theta=theta,
        spent=cohort.spent,
        refused=cohort.refused,
        rounds=cohort.rounds,
        curve=np.array(curve, dtype=np.float64).reshape(-1, 3),
    )
    os.replace(fresh, checkpoint)


def table() -> str:
    """All that has ended, in Markdown, the paper's numbers beside ours."""
    lines = [
        "| ε | zCDP, simple | zCDP, improved | setting | filtering | σ | C | η | k | steps "
        + "| paper, % | here, % | seeds |",
        "|---" * 13 + "|",
    ]
    for cell in cells():
        paths = sorted(OUT.glob(f"{cell.file_name}-seed*.json"))
        rows = [json.loads(path.read_text()) for path in paths]
        ours = [100 * row["accuracy"] for row in rows]
        spread = f" ± {np.std(ours, ddof=1):.2f}" if len(ours) > 1 else ""
        here = f"{np.mean(ours):.2f}{spread}" if ours else "not run"
        paper = "not at hand" if cell.paper is None else f"{cell.paper[0]} ± {cell.paper[1]}"
        seeds = " ".join(str(row["seed"]) for row in rows)
        lines.append(
            f"| {cell.epsilon:g} | {cell.simple_epsilon:.4f} | {cell.study(60_000).epsilon:.4f} "
            f"| {cell.setting} | {'with' if cell.filtering else 'without'} | {cell.sigma:g} "
            f"| {cell.clip:g} | {cell.rate:g} | {cell.fitting} | {cell.steps} | {paper} | {here} | {seeds} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="folder of the MNIST files; by default DEMUR_DATA")
    parser.add_argument(
        "--cells", nargs="*", default=[""], help="names like 0.3, 0.3/tuned or 0.3/tuned/with"
    )
    parser.add_argument("--seeds", nargs="*", type=int, default=[1])
    parser.add_argument("--threads", type=int, default=1, help="blocks of people at a time")
    parser.add_argument("--until", type=int, help="stop each run after this step, to go on later")
    parser.add_argument("--quiet", action="store_true", help="no line for each step")
    asked = parser.parse_args(arguments)
    chosen = [
        cell
        for wanted in asked.cells
        for cell in cells()
        if cell.name == wanted or cell.name.startswith(f"{wanted}/") or not wanted
    ]
    if asked.cells and not chosen:
        parser.error(f"no cell is called like that; they are {', '.join(c.name for c in cells())}")
    OUT.mkdir(parents=True, exist_ok=True)
    try:
        if chosen and asked.seeds:
            data = load_mnist(asked.data)
            people = LabelledPeople.one_each(data.train.examples, data.train.labels)
            for seed in asked.seeds:
                for cell in chosen:
                    run = Run(cell, seed, people, threads=asked.threads)
                    if not run.result.exists():
                        run.train(data.test, until=asked.until, quiet=asked.quiet)
    except DemurError as error:
        print(f"paper_tables: {error}", file=sys.stderr)
        return 1
    text = table()
    (OUT / "table.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
