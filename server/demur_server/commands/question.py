"""A running count as `demur ask` puts it: which study it needs, and where it goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from demur_proto.accounting.histograms import (
    best_histogram_study,
    design_histogram_study,
    epsilon_for_answers,
    histogram_study_for_epsilon,
)
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import NotFoundError, ParameterError
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import (
    MOST_CATEGORIES,
    Feature,
    Histogram,
    Linear,
    Query,
    RunningCount,
    Weights,
)
from demur_proto.queries.registry import mechanism_for
from demur_proto.release import Release
from demur_proto.round import DEFAULT_SLOT_MS, LATEST_ANSWER_MS, round_of
from demur_proto.running.factorisations import change_norm
from demur_proto.running.segments import (
    MOST_DEVICES,
    MOST_POSITIONS,
    Factorisation,
    Segment,
    check_counting,
    doubling,
)
from demur_proto.study import CATEGORICAL, Measure, Policy, Study, View, design_study
from demur_proto.wire.definition import Defined, define_study
from demur_server.analyst import Analyst
from demur_server.parsing import matches, read_weights

FIRST_SEGMENT = 64  #: rounds, where no end is known and nobody says otherwise
SQUARE_ROOT = Factorisation.SQUARE_ROOT
OF_COUNTS = ("segment", "bound", "cohort", "anew")  #: options of running counts only
RANGES = {"segment": MOST_POSITIONS, "bound": (1 << 31) - 1, "cohort": MOST_DEVICES}


def check_options(features: tuple[Feature, ...], given: Mapping[str, Any]) -> None:
    """Refuse what no running count can be asked with.

    Raises:
        ParameterError: an option has no such value, or there is more than one feature.
    """
    if len(features) != 1:
        names = " ".join(each.name for each in features)
        raise ParameterError("question", names, "one feature, which is the state")
    for name, most in RANGES.items():
        if name in given:
            check_integer(f"--{name}", given[name], 1, most)
    if given.get("policy") is Policy.CLIP:
        raise ParameterError("--policy", "clip", "skip or retire, as no change can be shrunk")


def counting_study(name: str, contract: Mapping[str, Any], given: Mapping[str, Any]) -> Study:
    """A study in which so many changes of anybody's state fit, whenever they come.

    A change is as large as in the longest segment that may come.

    Raises:
        ParameterError: an option has no such value.
    """
    told = dict(contract)
    exponent = told.pop("grid_exponent", -14)
    bound, rounds = given.get("bound", 1), told.get("horizon", 0)
    first = _first_horizon(given, rounds)
    longest = doubling(rounds, first=first)[-1] if rounds else MOST_POSITIONS
    check_counting(Segment(horizon=longest, cohort=1), bound=bound, sigma=1.0, exponent=exponent)
    norm = change_norm(SQUARE_ROOT, horizon=longest, exponent=exponent)
    return design_study(name=name, clip=bound * norm, grid_exponent=exponent, **told)


async def next_running(
    analyst: Analyst, feature: Feature, given: Mapping[str, Any]
) -> RunningCount:
    """The next round of a feature's running count, or the first one.

    Raises:
        ParameterError: the count says something else, or it is another feature that is counted.
        StateError: its last round is open, or nothing can go on with it.
        DemurError: as `Analyst.next_of`.
    """
    going: RunningCount | None = None
    known: tuple[str, ...] = ()
    if not given.get("anew"):
        going, known = await analyst.next_or_others(feature.name)
    study = analyst.study.value
    if going is None:
        if known:
            expected = f"{' or '.join(known)}, which this study counts; --anew begins another count"
            raise ParameterError("question", feature.name, expected)
        segment = Segment(
            horizon=_first_horizon(given, study.horizon),
            cohort=given.get("cohort", study.minimum_cohort),
        )
        bound = given.get("bound", 1)
    else:
        segment, bound = going.segment, going.bound
        first = (*segment.earlier, segment.horizon)[0]
        kept = {"segment": first, "bound": bound, "cohort": segment.cohort}
        for name, value in kept.items():
            if given.get(name, value) != value:
                expected = f"{value}, as the count says; --anew begins another one"
                raise ParameterError(f"--{name}", given[name], expected)
    return RunningCount(feature, segment, bound=bound)


def _first_horizon(given: Mapping[str, Any], rounds: int) -> int:
    """Of the first segment: as told, or all rounds of a study that says how many there are."""
    horizon: int = given.get("segment", min(rounds or FIRST_SEGMENT, MOST_POSITIONS))
    return horizon


# What `demur ask` was asked: which study is meant, and a sum, a histogram or a running count.

ANSWERS = 15  #: that a device can afford, unless somebody says otherwise
DEFAULTS: Mapping[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
OF_SUMS = ("clip", "on_grid", "dimension", "weights")
OF_HISTOGRAMS = ("categories", "mechanism", "question_epsilon")
NOT_OF_HISTOGRAMS = (*OF_SUMS, *OF_COUNTS, "dishonest", "grid_exponent")
KINDS = {"view": View, "measure": Measure, "policy": Policy}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question, and what is said about its study. Made by `Question.read`."""

    features: tuple[Feature, ...]
    categories: int | None  #: of a histogram; None: a sum or a running count
    running: bool  #: a running count
    given: Mapping[str, Any]  #: every option that was given, by its name

    @classmethod
    def read(cls, features: Sequence[Feature], given: Mapping[str, Any]) -> "Question":
        """Check what can be checked before anybody is called.

        Args:
            features: what is asked.
            given: options by their names, as in `question_epsilon`; None where one was left out.

        Raises:
            ParameterError: an option has no such value, or belongs to the other kind of question.
        """
        known = {name: value for name, value in given.items() if value is not None}
        running = known.pop("running", False)
        _check_kind(known, running=running)
        categories = known.pop("categories", None)
        for name, choices in {**KINDS, "mechanism": Randomiser}.items():
            if name in known:
                if known[name] not in list(choices):
                    raise ParameterError(_flag(name), known[name], " or ".join(choices))
                known[name] = choices(known[name])
        if categories is not None:
            check_integer("--categories", categories, 1, MOST_CATEGORIES)
            if categories == 1 and known.get("mechanism", Randomiser.KRR) is not Randomiser.KRR:
                raise ParameterError(
                    "--mechanism", str(known["mechanism"]), "krr with one category"
                )
            if len(features) != 1:
                names = " ".join(each.name for each in features)
                raise ParameterError("question", names, "one feature, which gives the category")
            if "question_epsilon" in known:
                check_positive("--question-epsilon", known["question_epsilon"])
                if "answers" in known:
                    raise ParameterError(
                        "--answers", known["answers"], "left out with --question-epsilon"
                    )
        if running:
            check_options(tuple(features), known)
        if "weights" in known:
            known["weights"] = Weights.of(read_weights(known["weights"]))
        if "answers" in known:
            check_integer("--answers", known["answers"], 1)
        check_integer(
            "--answer-after-ms",
            known.setdefault("answer_after_ms", DEFAULT_SLOT_MS),
            1,
            LATEST_ANSWER_MS,
        )
        return cls(features=tuple(features), categories=categories, running=running, given=known)

    def study(self, found: Sequence[Defined[Study]], name: str | None) -> Study:
        """The study that is meant: one of these, or a new one.

        Args:
            found: the collector's studies.
            name: a name, or 8 digits of a hash; None for the only one there is.

        Raises:
            NotFoundError: there is none, or more than one, and not enough is said for a new one.
            ParameterError: the study says something else, or a new one would not allow the question:
                then it is not made, for its name would be taken.
        """
        contract = {key: self.given[key] for key in CONTRACT if key in self.given}
        meant = [each for each in found if name is None or matches(each, name)]
        if not meant and name is not None and "minimum_cohort" in contract:
            study = self._new(name, contract)
            self._check_first(study)
            return study
        if len(meant) != 1:
            choices = ", ".join(f"{each.hash.hex()[:16]} ({each.value.name})" for each in found[:5])
            which = "" if name is None else f" {name!r}"
            there = f"there are {len(meant)} studies{which}: {choices}"
            if not meant:
                there = f"there is no study{which}; the collector has {choices or 'none'}"
            raise NotFoundError(
                f"{there}; say --study, and for a new one at least --minimum-cohort as well"
            )
        study = meant[0].value
        fits = study.mechanism_family.has_linear, study.mechanism_family.has_histograms
        if not fits[self.categories is not None]:
            came, only = self._kind, "a histogram, with --categories"
            if self.categories is not None:
                came, only = "a histogram", "a sum, without --categories"
            raise ParameterError("question", came, f"{only}, in the study {study.name!r}")
        if self.categories is None and "answers" in self.given:
            raise ParameterError(
                "--answers", self.given["answers"], f"left out, as there is a study {study.name!r}"
            )
        for key, value in contract.items():
            kept = getattr(study, "base_grid_exponent" if key == "grid_exponent" else key)
            if kept != value:
                raise ParameterError(_flag(key), value, f"{kept}, as the study {study.name!r} says")
        return study

    async def ask(self, analyst: Analyst, *, reports: int | None, timeout_s: float) -> Release:
        """Put it, wait for the reports, and return the release.

        Raises:
            DemurError: as `Analyst.ask` and `next_running`.
        """
        query = (
            await next_running(analyst, self.features[0], self.given)
            if self.running
            else self._query(analyst.study.value)
        )
        return await analyst.ask(query, reports=reports, timeout_s=timeout_s)

    def _query(self, study: Study) -> Query:
        """A sum or a histogram."""
        if self.categories is None:
            return Linear(
                self.features, **{name: self.given[name] for name in OF_SUMS if name in self.given}
            )
        return Histogram(
            self.features[0],
            categories=self.categories,
            mechanism=self._mechanism,
            epsilon=self._epsilon(study, self.categories),
        )

    @property
    def _kind(self) -> str:
        return "a running count" if self.running else "a sum"

    @property
    def _mechanism(self) -> Randomiser:
        default = Randomiser.KRR if self.categories == 1 else Randomiser.OUE
        mechanism: Randomiser = self.given.get("mechanism", default)
        return mechanism

    def _epsilon(self, study: Study, categories: int) -> float:
        """ε of the one answer: as was said, or what so many answers leave for each."""
        if "question_epsilon" in self.given:
            return float(self.given["question_epsilon"])
        answers = study.budget_units if study.measure is Measure.ANSWERS else ANSWERS
        return epsilon_for_answers(
            study,
            mechanism=self._mechanism,
            categories=categories,
            answers=self.given.get("answers", answers),
        )

    def _new(self, name: str, contract: Mapping[str, Any]) -> Study:
        told = {**DEFAULTS, **contract}
        if self.running:
            told["answers"] = self.given.get("answers", ANSWERS)
            return counting_study(name, told, self.given)
        if self.categories is None:
            answers = self.given.get("answers", ANSWERS)
            clip = self.given.get("clip", 1.0)
            return design_study(name=name, clip=clip, answers=answers, **told)
        return self._new_histograms(name, told, categories=self.categories)

    def _new_histograms(self, name: str, told: dict[str, Any], *, categories: int) -> Study:
        """In the measure that was told, or else in the one that gives so many answers most."""
        if told.pop("view", View.LOCAL) != View.LOCAL:
            raise ParameterError("--view", str(self.given["view"]), "local with --categories")
        measure = told.pop("measure", None)
        if measure is not None and measure not in CATEGORICAL:
            raise ParameterError(
                "--measure", str(measure), f"{' or '.join(CATEGORICAL)} with --categories"
            )
        most = told.pop("maximum_dimension", categories)
        if most < categories:
            raise ParameterError("--maximum-dimension", most, f"{categories} categories")
        contract = {"name": name, "categories": categories, **told}
        answers, each = self.given.get("answers", ANSWERS), self.given.get("question_epsilon")
        if each is not None:
            # As many as fit; where not even one does, the check that follows says so.
            measures = CATEGORICAL if measure is None else (measure,)
            study = histogram_study_for_epsilon(
                **contract, mechanism=self._mechanism, each=each, measures=measures
            )
        elif measure is None:
            study = best_histogram_study(**contract, mechanism=self._mechanism, answers=answers)
        else:
            counted = answers if measure is Measure.ANSWERS else 0
            study = design_histogram_study(**contract, measure=measure, answers=counted)
        return replace(study, maximum_dimension=most)

    def _check_first(self, study: Study) -> None:
        """Refuse a question that a new study does not allow; of running counts `counting_study` has."""
        if self.running:
            return
        asked = round_of(define_study(study), self._query(study), number=1)
        asked.query.check_affordable(study, asked.weight)
        mechanism_for(study, asked)


CONTRACT = (
    "epsilon",
    "delta",
    "minimum_cohort",
    "dishonest",
    "view",
    "measure",
    "policy",
    "horizon",
    "grid_exponent",
    "maximum_dimension",
)
"""What a study says of itself, and a question may repeat."""


def _check_kind(known: Mapping[str, Any], *, running: bool) -> None:
    """Refuse an option of another kind of question.

    Raises:
        ParameterError: there is one.
    """
    wrong: tuple[str, ...]
    if running:
        wrong, why = (*OF_SUMS, *OF_HISTOGRAMS), "left out with --running, which has none"
    elif "categories" in known:
        wrong, why = NOT_OF_HISTOGRAMS, "left out with it, as --categories has none"
    else:
        wrong, why = (*OF_HISTOGRAMS, *OF_COUNTS), "given with {} only, as a sum has none"
    for name in wrong:
        if name in known and not (name == "categories" and not running):
            with_it = "--running" if name in OF_COUNTS else "--categories"
            raise ParameterError(_flag(name), known[name], why.format(with_it))


def _flag(name: str) -> str:
    """An option as it is written.

    >>> _flag("grid_exponent")
    '--grid-exponent'
    """
    return f"--{name.replace('_', '-')}"
