"""Other designs for the same people: what they promise, how far off they are, and where that is kept."""

import csv
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demur_proto.arrays import Vector
from demur_proto.errors import ParameterError
from demur_proto.study import View
from demur_sim.cli import main
from demur_sim.comparison.beside import Beside, candidates_of, simulate_beside
from demur_sim.comparison.by_name import DesignName, designs_of, names_of
from demur_sim.comparison.flips import truncation_errors
from demur_sim.comparison.memoised import MemoisedUnary
from demur_sim.people.populations import ArrayPopulation
from demur_sim.results.files import save
from demur_sim.results.report import report
from demur_sim.results.running import RunningResult
from demur_sim.results.sums import LinearResult
from demur_sim.run import question, run_anywhere, simulate
from demur_sim.scenario import Kind, Scenario, load_scenario

ALL = ",".join(DesignName)
REMEMBER = {DesignName.L_SUE, DesignName.L_OSUE, DesignName.L_GRR, DesignName.BIT_FLIP}
FOLLOW = {DesignName.KEPT_CHANGE, DesignName.COMPOSED_RESPONSE}


def counted(*overrides: str) -> RunningResult:
    """The shipped states, cut to size."""
    size = ("data.devices=3000", "data.periods=40")
    result = simulate(load_scenario("states", overrides=[*size, *overrides]), workers=2)
    assert isinstance(result, RunningResult)
    return result


@cache
def whole() -> RunningResult:
    return counted(f"beside={ALL}")


def truth_of(result: RunningResult) -> Vector:
    return result.truth[:, 0]


# ---- what they promise -----------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 6.0])
@pytest.mark.parametrize("name", DesignName)
def test_every_design_promises_what_was_asked_and_hardly_less(
    name: DesignName, epsilon: float
) -> None:
    for design in designs_of(name, horizon=64, epsilon=epsilon, delta=1e-6)[:4]:
        promised = design.guarantee

        kept = promised.steady_epsilon if name in REMEMBER else promised.epsilon
        assert kept is not None
        assert epsilon * (1 - 1e-9) < kept <= epsilon
        assert promised.delta == (1e-6 if name is DesignName.REPEATED_RESPONSE else 0)
        if name in REMEMBER:
            assert promised.epsilon > 3 * epsilon  # for whoever changes, as the horizon is long
        if name in REMEMBER - {DesignName.BIT_FLIP}:
            assert epsilon / 2 * (1 - 1e-9) < promised.report_epsilon <= epsilon / 2


def test_one_report_of_l_osue_is_as_private_as_its_chain_says() -> None:
    (design,) = designs_of(DesignName.L_OSUE, horizon=9, epsilon=1.0, delta=1e-6)

    assert isinstance(design, MemoisedUnary)
    # A set bit is a coin, another one shows e^(ε/2) times less often, and 1 − q is nearer to ½ than that.
    assert design.chain.own == 0.5
    assert float(design.chain.other) == pytest.approx(math.exp(-0.5) / 2, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "sue",
            "beside must be names with commas between them, of repeated_response, .* got 'sue'",
        ),
        ("l_sue,", "beside must be names with commas between them, .* got ''"),
        ("l_sue, l_sue", "beside must be each name once, got 'l_sue, l_sue'"),
    ],
)
def test_texts_that_name_no_designs_are_refused(text: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        names_of(text)


# ---- how far off they are --------------------------------------------------------------------


def switched_on_once() -> ArrayPopulation:
    """70,000 people, two blocks, who are on from some round on; half of them never."""
    rng = np.random.default_rng(1)
    since = rng.integers(0, 12, size=(70_000, 1))
    return ArrayPopulation((since < np.arange(1, 7)).astype(float))


def all_of(
    threads: int, names: str = ALL, people: ArrayPopulation | None = None
) -> dict[str, Beside]:
    scenario = Scenario(
        name="mine",
        kind=Kind.PREFIX,
        feature="value",
        grid_exponent=-14,
        view=View.LOCAL,
        beside=names,
    )
    people = people or switched_on_once()

    async def run() -> tuple[Beside, ...]:
        return await simulate_beside(
            candidates_of(scenario, rounds=people.periods),
            people,
            [question(scenario, period) for period in range(1, people.periods + 1)],
            seed=0,
            threads=threads,
            progress=lambda _: None,
        )

    return {each.name: each for each in run_anywhere(run)}


def test_where_nobody_changes_twice_every_design_is_off_by_its_noise_alone() -> None:
    people = switched_on_once()
    truth = people.values[:, :, 0].sum(axis=0)

    for name, each in all_of(2).items():
        # 6 rounds and 7 designs; one normal in 1.7 million is off by 5.
        assert (np.abs(each.estimates - truth) < 5 * each.standard_errors).all(), name
        assert each.truncation == 0, name
        assert each.rmse(truth) > 0.1 * each.standard_error, name


def test_threads_and_other_names_change_nothing() -> None:
    one, two = all_of(1, "repeated_response,l_sue"), all_of(2, "l_sue")

    assert one["l_sue"].estimates.tolist() == two["l_sue"].estimates.tolist()
    assert one["l_sue"].standard_errors.tolist() == two["l_sue"].standard_errors.tolist()
    assert one["l_sue"].estimates.tolist() != one["repeated_response"].estimates.tolist()


def test_the_number_of_changes_is_the_best_one_for_these_people() -> None:
    rng = np.random.default_rng(2)
    states = np.cumsum(rng.random((70_000, 6)) < 0.4, axis=1) % 2
    people = ArrayPopulation(states.astype(float))

    off = 70_000 * truncation_errors((states == 1).T, horizon=6, most=6)
    found = all_of(2, "kept_change,composed_response", people)

    for name, each in found.items():
        designs = designs_of(DesignName(name), horizon=6, epsilon=1.0, delta=1e-6)[:6]
        errors = [
            math.hypot(off[k], design.deviation * math.sqrt(70_000))  # type: ignore[attr-defined]
            for k, design in enumerate(designs)
        ]
        assert each.changes == 1 + int(np.argmin(errors))
        assert each.truncation == pytest.approx(off[each.changes - 1], rel=1e-12)
        assert "which the promise does not cover" in each.statement
    assert found["kept_change"].changes != found["composed_response"].changes


def test_what_is_released_is_the_same_with_and_without_others() -> None:
    alone = counted()

    assert whole().releases_sha256 == alone.releases_sha256
    assert alone.beside == ()


def test_repeated_response_goes_beside_a_sum_of_yes_and_no() -> None:
    overrides = ["view=local", "beside=repeated_response", "rounds=4"]
    result = simulate(load_scenario("cdnow-weekly", overrides=overrides), workers=2)

    assert isinstance(result, LinearResult)
    (other,) = result.beside
    (design,) = designs_of(other.name, horizon=4, epsilon=1.0, delta=1e-6)
    expected = design.deviation * math.sqrt(23_570)  # type: ignore[attr-defined]
    np.testing.assert_allclose(other.standard_errors, expected, rtol=1e-12)
    assert (np.abs(other.estimates - result.truth[:, 0]) < 5 * expected).all()
    assert result.summary()["beside"][0]["rmse"] == other.rmse(result.truth[:, 0])


# ---- where it is kept ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("run")
    save(whole(), folder)
    return folder


def test_the_table_holds_every_estimate_with_its_error_and_the_truth(saved: Path) -> None:
    rows = list(csv.DictReader((saved / "beside.csv").read_text().splitlines()))

    assert len(rows) == 40 * len(DesignName)
    for each in whole().beside:
        mine = [row for row in rows if row["design"] == each.name]
        assert [int(row["number"]) for row in mine] == [*range(1, 41)]
        assert [float(row["estimate"]) for row in mine] == each.estimates.tolist()
        assert [float(row["standard_error"]) for row in mine] == each.standard_errors.tolist()
        truth = [float(row["simulator_truth_everyone"]) for row in mine]
        assert truth == truth_of(whole()).tolist()


def test_the_summary_says_of_each_how_far_off_it_is_and_whom_it_protects(saved: Path) -> None:
    found = json.loads((saved / "summary.json").read_text())["beside"]

    assert [each["name"] for each in found] == list(DesignName)
    for each, other in zip(found, whole().beside, strict=True):
        off = other.estimates - truth_of(whole())
        assert each["rmse"] == pytest.approx(math.sqrt(np.mean(off**2)), rel=1e-12)
        known = {"truncation_rmse": other.truncation, "fraction_rmse": each["rmse"] / 3000}
        assert each["simulator_truth"] == pytest.approx(known, rel=1e-12)
        assert (each["changes"] is not None) == (other.name in FOLLOW)
        promised = each["guarantee"]
        assert (promised["unit"], promised["neighbour"], promised["view"]) == (
            *("device", "zero-out"),
            "local",
        )
        for words in ("Unit: one device", "Neighbour: zero-out", "View: local", "protects nobody"):
            assert words in promised["statement"]
        assert (promised["only_if_nothing_changes"] is not None) == (other.name in REMEMBER)
        if other.name in REMEMBER:
            assert (
                "When a state changes is protected by the first figure only"
                in (promised["statement"])
            )
    assert found[-1]["guarantee"]["epsilon"] is None  # of dBitFlipPM, for whoever changes
    assert "no differential privacy at all over 40 rounds" in found[-1]["guarantee"]["statement"]


def test_a_person_reads_each_with_its_error_and_its_promise() -> None:
    text = report(whole(), Path("runs/x"))

    assert "unit one device, zero-out, view local" in text
    for words in (
        "(1, 1e-06) for anybody",
        "(1, 0) for anybody",
        "if nothing changes, else nothing",
    ):
        assert words in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_run_without_others_has_no_table_of_them_and_a_panel_less(
    saved: Path, tmp_path: Path
) -> None:
    (tmp_path / "beside.csv").write_text("of an earlier run")

    save(counted("rounds=2"), tmp_path)

    def height(folder: Path) -> int:  # as a PNG has it
        return int.from_bytes((folder / "plot.png").read_bytes()[20:24], "big")

    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"releases.csv", "study.json", "plot.png", "summary.json"}
    assert height(saved) == pytest.approx(1.5 * height(tmp_path), abs=1)


# ---- the command -----------------------------------------------------------------------------


def test_the_command_takes_names_for_every_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--json", "--out", str(tmp_path))
    states = ("states", "--set", "data.devices=300", "--set", "data.periods=3", "--beside", "l_grr")
    telemetry = ("telemetry", "--set", "data.devices=300", "--set", "rounds=1", "--beside", "krr")

    assert main(("simulate", *states, *out)) == 0
    (other,) = json.loads(capsys.readouterr().out)["beside"]
    assert main(("simulate", *telemetry, *out)) == 0
    mechanism = json.loads(capsys.readouterr().out)["beside"]["mechanism"]

    assert (other["name"], mechanism["name"]) == ("l_grr", "krr")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("states", "--beside", "rappor"), "beside must be names with commas between them, of rep"),
        (
            ("cdnow", "--beside", "repeated_response"),
            "beside must be left out where view is aggregate: these designs are for view local",
        ),
        (
            ("cdnow", "--set", "view=local", "--beside", "l_sue"),
            "beside must be repeated_response where kind is linear: the others count a state",
        ),
        (
            (
                *("cdnow", "--set", "view=local", "--set", "feature=events"),
                *("--set", "on_grid=false", "--set", "grid_exponent=-14"),
                *("--beside", "repeated_response"),
            ),
            "beside must be left out unless feature is active or amount_at_least, and clip >= 1",
        ),
        (
            ("states", "--set", "epsilon=40", "--set", "data.devices=9", "--beside", "l_sue"),
            "its forever must be between 1e-09 and 50 nats, and would be 80.0), got 'l_sue'",
        ),
        (("telemetry", "--beside", "l_sue"), "beside must be krr or sue or blh or olh or hadamard"),
        (("states", "--set", "beside=x"), "beside in --set must be names with commas"),
    ],
)
def test_what_cannot_go_beside_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
) -> None:
    assert main(("simulate", *arguments)) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


def test_progress_goes_on_to_the_end_through_every_design() -> None:
    told: list[tuple[int, int, int]] = []
    names = "beside=repeated_response,l_sue"
    small: Any = ("data.devices=50", "data.periods=4", names)

    simulate(
        load_scenario("states", overrides=small), progress=lambda *progress: told.append(progress)
    )

    assert [done for done, _, _ in told] == [1, 2, 3, 4, 8, 12]
    assert {total for _, total, _ in told} == {12}
    assert [reports for _, _, reports in told] == [50 * done for done, _, _ in told]
