"""What an owner's policy refuses: for public reasons, in one line, and before any data are read."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_client.enrolment import agent_of
from demur_client.evaluator.spare import SpareEvaluator
from demur_client.ledger.kept import MemoryLedger
from demur_client.policy import OwnerPolicy, QuietHours, epsilon_together
from demur_client.policy_file import load_counter, load_policy, template
from demur_client.sources.base import FunctionSource
from demur_client.sources.folder import FolderSource
from demur_client.sources.sql import TableSource
from demur_proto.accounting.conversions import zcdp_epsilon
from demur_proto.accounting.histograms import design_histogram_study
from demur_proto.errors import ParameterError, PolicyError
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import Feature, Histogram, Linear, RunningCount
from demur_proto.round import round_of
from demur_proto.running.segments import Segment
from demur_proto.study import Measure, Study, View, design_study
from demur_proto.v1 import round_pb2
from demur_proto.wire.definition import Defined, define_round, define_study

FEATURE = Feature(name="x")


def designed(**changes: Any) -> Study:
    given: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "answers": 3, "minimum_cohort": 10}
    given |= {"name": "s", "view": View.LOCAL, "grid_exponent": -7, **changes}
    return design_study(**given)


def refusal(policy: OwnerPolicy, study: Study, **how: Any) -> str | None:
    """Why it is refused; None where it is not."""
    try:
        policy.check_study(define_study(study), **how)
    except PolicyError as error:
        return str(error)
    return None


STUDY = designed()
HISTOGRAMS = design_histogram_study(
    name="h", epsilon=2.0, delta=1e-6, minimum_cohort=10, categories=4
)


@pytest.mark.parametrize(
    ("policy", "study", "key"),
    [
        ({"opt_out": True}, STUDY, "opt_out"),
        ({"studies": (bytes(32),)}, STUDY, "studies"),
        ({}, designed(view=View.AGGREGATE), "views"),
        ({"mechanisms": ("krr",)}, STUDY, "mechanisms"),
        ({"mechanisms": ("gaussian",)}, HISTOGRAMS, "mechanisms"),
        ({"largest_epsilon": 0.999}, STUDY, "largest_epsilon"),
        ({"largest_delta": 9e-7}, STUDY, "largest_delta"),
        ({"smallest_cohort": 11}, STUDY, "smallest_cohort"),
        ({"lifetime_epsilon": 0.5}, STUDY, "lifetime_epsilon"),
    ],
)
def test_a_study_outside_the_policy_is_refused_with_the_key_that_refuses_it(
    policy: dict[str, Any], study: Study, key: str
) -> None:
    said = refusal(OwnerPolicy(**policy), study)

    assert said is not None
    assert said.startswith(f"study '{study.name}' is refused by this device's policy: ")
    assert said.endswith(f"({key})")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("policy", "study"),
    [
        ({}, STUDY),
        ({"largest_epsilon": 1.0, "largest_delta": 1e-6, "smallest_cohort": 10}, STUDY),
        ({"studies": (bytes(32), define_study(STUDY).hash)}, STUDY),
        ({"views": ("aggregate",)}, designed(view=View.AGGREGATE)),
        ({"mechanisms": ("krr", "oue")}, HISTOGRAMS),
    ],
)
def test_a_study_at_the_edge_of_the_policy_is_accepted(
    policy: dict[str, Any], study: Study
) -> None:
    assert refusal(OwnerPolicy(**policy), study) is None


def test_declared_budgets_of_all_studies_add_up_against_the_lifetime_cap() -> None:
    one = designed(name="one", epsilon=2.0)
    spent = epsilon_together([one], delta=1e-5)
    both = epsilon_together([one, one], delta=1e-5)
    policy = OwnerPolicy(lifetime_epsilon=both)

    assert spent < both < 2 * spent
    assert both == pytest.approx(zcdp_epsilon(one.budget**2, delta=1e-5))  # twice μ²/2
    assert refusal(policy, one, agreed=[one]) is None
    assert str(refusal(policy, one, agreed=[one, one])).endswith("(lifetime_epsilon)")
    assert policy.lifetime_cap.budget == pytest.approx(one.budget**2)


def test_budgets_in_both_measures_add_up() -> None:
    both = epsilon_together([STUDY, HISTOGRAMS], delta=1e-5)

    assert both == pytest.approx(zcdp_epsilon(STUDY.budget**2 / 2 + HISTOGRAMS.budget, delta=1e-5))


ROUND = define_round(
    round_of(define_study(STUDY), Linear([FEATURE], on_grid=True), number=1, answer_after_ms=1000)
)


def in_slot(slot_ms: int) -> Defined[Any]:
    return define_round(replace(ROUND.value, answer_after_ms=slot_ms))


def histogram(epsilon: float) -> Defined[Any]:
    query = Histogram(feature=FEATURE, categories=4, mechanism=Randomiser.KRR, epsilon=epsilon)
    study = define_study(HISTOGRAMS)
    return define_round(round_of(study, query, number=1, answer_after_ms=1000))


COUNT = define_round(
    round_of(
        define_study(designed(grid_exponent=-14)),
        RunningCount(FEATURE, Segment(horizon=3, cohort=10).begun(1)),
        number=1,
        answer_after_ms=1000,
    )
)


def test_a_policy_knows_every_kind_of_question() -> None:
    assert set(OwnerPolicy().questions) == {
        each.name for each in round_pb2.Round.DESCRIPTOR.oneofs_by_name["query"].fields
    }


@pytest.mark.parametrize(
    ("policy", "asked", "key"),
    [
        ({"smallest_sigma": 1e6}, ROUND, "smallest_sigma"),
        ({"mechanisms": ("krr",)}, ROUND, "mechanisms"),
        ({"mechanisms": ("oue",)}, histogram(1.0), "mechanisms"),
        ({"largest_round_epsilon": 0.5}, histogram(1.0), "largest_round_epsilon"),
        ({"shortest_slot_ms": 101}, in_slot(100), "shortest_slot_ms"),
        ({"shortest_slot_ms": 1}, in_slot(0), "shortest_slot_ms"),
        ({}, in_slot(0), "shortest_slot_ms"),
        ({"questions": ("histogram", "prefix")}, ROUND, "questions"),
        ({"questions": ("linear",)}, histogram(1.0), "questions"),
        ({"questions": ("linear",)}, COUNT, "questions"),
        ({"smallest_sigma": 1e6}, COUNT, "smallest_sigma"),
    ],
)
def test_a_round_outside_the_policy_is_refused_with_the_key_that_refuses_it(
    policy: dict[str, Any], asked: Defined[Any], key: str
) -> None:
    with pytest.raises(PolicyError, match=rf"^round 1 is refused: .* \({key}\)$"):
        OwnerPolicy(**policy).check_round(asked)


def test_rounds_inside_the_policy_are_answered() -> None:
    policy = OwnerPolicy(shortest_slot_ms=100, largest_round_epsilon=1.0)
    for asked in (ROUND, in_slot(100), histogram(1.0)):
        policy.check_round(asked)


def test_rounds_without_a_slot_are_for_devices_whose_data_are_made_up() -> None:
    policy = OwnerPolicy(shortest_slot_ms=0)
    policy.check_round(in_slot(0))

    with (
        SpareEvaluator(FunctionSource({})) as evaluator,
        pytest.raises(ParameterError, match=r"^shortest_slot_ms must be at least 1"),
    ):
        agent_of(MemoryLedger(), evaluator, policy=policy)


# ---- quiet hours -----------------------------------------------------------------------------


@given(
    start=st.integers(0, 1439),
    length=st.integers(1, 1439),
    at=st.datetimes(datetime(2024, 1, 1), datetime(2024, 2, 1)),
)
def test_it_is_quiet_from_start_to_end_and_at_no_other_time(
    start: int, length: int, at: datetime
) -> None:
    end = (start + length) % 1440
    text = f"{start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02}"
    policy = OwnerPolicy(quiet_hours=(QuietHours.read(text),))
    minute = at.hour * 60 + at.minute + at.second / 60 + at.microsecond / 6e7

    left = policy.quiet_for(at)

    since = (minute - start) % 1440
    assert (left > timedelta()) == (since < length)
    if left:
        assert left.total_seconds() / 60 == pytest.approx(length - since, abs=1e-3)


@pytest.mark.parametrize(
    "text", ["", "22:00", "22:00-22:00", "25:00-07:00", "22-7", "a-b", "1-2-3"]
)
def test_quiet_hours_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="22:00-07:00"):
        QuietHours.read(text)


# ---- the file --------------------------------------------------------------------------------


def written(folder: Path, text: str) -> Path:
    path = folder / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_template_says_what_holds_without_it(tmp_path: Path) -> None:
    plain = load_policy(written(tmp_path, template()))
    spelled = template().replace("\n# ", "\n").replace("What this device", "# What this device")
    elsewhere = ("database", "time_limit", "active", "counter")  # in tables, which hold examples
    told = [
        line
        for line in spelled.splitlines()
        if "=" in line.split("#")[0] and not line.startswith(elsewhere)
    ]

    assert plain[0] == OwnerPolicy()
    assert load_policy(written(tmp_path, "\n".join(told)))[0] == OwnerPolicy()
    assert len(told) == len(OwnerPolicy.__slots__)


def test_a_counter_behind_links_that_lead_to_themselves_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")

    with pytest.raises(ParameterError, match="leads somewhere"):
        load_counter(written(tmp_path, "[ledger]\ncounter = 'loop/mark'"))


def test_without_a_word_about_it_there_is_no_counter(tmp_path: Path) -> None:
    assert load_counter(written(tmp_path, template())) is None


def test_a_file_says_all_of_a_policy_and_where_the_data_are(tmp_path: Path) -> None:
    text = f"""
        views = ["local", "aggregate"]
        mechanisms = ["gaussian"]
        largest_epsilon = 2
        studies = ["{"ab" * 32}"]
        certificates = ["{":".join(["cd"] * 32)}"]
        quiet_hours = ["22:00-07:00"]
        [source]
        database = "mine/data.sqlite"
        time_limit_s = 0.5
        [features]
        x = "SELECT 1"
    """

    policy, source = load_policy(written(tmp_path, text))

    assert policy.views == (View.LOCAL, View.AGGREGATE)
    assert policy.largest_epsilon == 2.0
    assert policy.studies == (bytes([0xAB]) * 32,)
    assert policy.certificates == (bytes([0xCD]) * 32,)
    assert source.database == tmp_path / "mine" / "data.sqlite"
    assert source.limits.time_limit_s == 0.5
    assert isinstance(source.open(), TableSource)


def test_a_folder_of_files_is_a_source_too(tmp_path: Path) -> None:
    _, source = load_policy(written(tmp_path, '[source]\nfolder = "."\n[features]\nx="SELECT 1"'))

    assert isinstance(source.open(), FolderSource)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("largest_epsilom = 1.0", "did you mean largest_epsilon?"),
        ("largest_epsilon = '1'", "a number"),
        ("largest_epsilon = true", "a number"),
        ("largest_epsilon = nan", "largest_epsilon"),
        ("largest_epsilon = 0", "largest_epsilon"),
        ("lifetime_epsilon = inf", "lifetime_epsilon"),
        ("largest_delta = 1", "largest_delta"),
        ("smallest_sigma = -1", "smallest_sigma in .* must be a finite number >= 0"),
        ("smallest_sigma = nan", "smallest_sigma"),
        ("smallest_sigma = inf", "smallest_sigma"),
        ("smallest_cohort = 0", "smallest_cohort"),
        ("smallest_cohort = 1.5", "smallest_cohort"),
        ("shortest_slot_ms = -1", "shortest_slot_ms"),
        ("shortest_slot_ms = 0", "shortest_slot_ms in .* must be at least 1"),
        ("opt_out = 1", "true or false"),
        ("evaluation_memory_mib = 63", "evaluation_memory_mib"),
        ("evaluation_processor_s = 0.5", "evaluation_processor_s"),
        ("evaluation_wall_s = 0", "evaluation_wall_s"),
        ("fill_processor = 1", "true or false"),
        ("views = 'local'", "a list of texts"),
        ("views = ['nobody']", "local, aggregate"),
        ("views = []", "at least one of local, aggregate"),
        ("mechanisms = []", "at least one of gaussian"),
        ("questions = []", "at least one of linear"),
        ("mechanisms = ['magic']", "gaussian, krr"),
        ("questions = ['why']", "linear, histogram"),
        ("studies = ['ab']", "64 hexadecimal digits"),
        ("quiet_hours = ['night']", "22:00-07:00"),
        ("source = 1", r"\[source\]"),
        ("[source]\ndatabase = 1", "source.database"),
        ("[source]\ndatabase = 'a'\nfolder = 'b'", "a database or a folder"),
        ("[source]\ndatabase = 'a'\nmost_rows = 0", "most_rows"),
        ("[source]\nsql = 'a'", "source.key"),
        ("[features]\nx = 'SELECT 1'", "for the features"),
        ("[source]\ndatabase = 'a'\n[features]\nx = 'DELETE FROM y'", "features.x"),
        ("[source]\ndatabase = 'a'\n[features]\nx = 1", "features.x"),
        ("views = [", "a TOML file"),
        (f"largest_epsilon = 1{400 * '0'}", "largest_epsilon"),
    ],
)
def test_a_file_with_a_mistake_is_one_line_that_names_it(
    text: str, said: str, tmp_path: Path
) -> None:
    path = written(tmp_path, text)

    with pytest.raises(ParameterError, match=said) as caught:
        load_policy(path)

    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ParameterError, match="policy"):
            load_policy(path)


def test_the_lifetime_cap_counts_a_study_of_any_measure_by_what_it_is_in_zcdp() -> None:
    def study(measure: Measure, epsilon: float) -> Defined[Study]:
        return define_study(
            design_histogram_study(
                name="h",
                epsilon=epsilon,
                delta=1e-6,
                minimum_cohort=1,
                categories=4,
                measure=measure,
                answers=15 if measure is Measure.ANSWERS else 0,
            )
        )

    cap = OwnerPolicy().lifetime_cap.budget
    composed = study(Measure.ANSWERS, 1.0)

    assert float(study(Measure.PURE, 1.0).value.rho) / cap == pytest.approx(0.38, abs=0.01)
    assert float(composed.value.rho) / cap == pytest.approx(0.03, abs=0.005)
    OwnerPolicy(views=(View.LOCAL,)).check_study(composed, agreed=[composed.value] * 20)
    OwnerPolicy().check_study(study(Measure.PURE, 1.74))
    with pytest.raises(PolicyError, match="lifetime_epsilon"):
        OwnerPolicy().check_study(study(Measure.PURE, 1.75))
