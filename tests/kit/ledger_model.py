"""What a ledger should hold, in a few lines, and stories that end with the same in both."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from demur_client.ledger.base import Identity, Ledger, Settled
from demur_proto.study import Policy
from ledger_kit import FULL, ask, maker, study_of

STUDIES = (
    study_of(name="first"),
    study_of(Policy.RETIRE, name="second"),
    study_of(Policy.CLIP, name="third"),
)
NUMBERS = 30  #: of rounds in random stories, mostly
READING = "reading for"  #: what `Event.to_ledger` tells when data may be read


@dataclass(kw_only=True)
class Side:
    """One study, as it should be."""

    left: int = 0
    refused: bool = False
    agreed: bool = False
    forgotten: bool = False
    answers: dict[int, tuple[int, bool]] = field(default_factory=dict)  #: charge, given
    settled: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)  #: and not answered
    stopped: set[int] = field(default_factory=set)  #: of them, by an earlier process


class Model:
    """Every study, as it should be."""

    def __init__(self) -> None:
        self.sides = [Side(left=study.value.budget_units) for study in STUDIES]
        self.target = ""

    def agree(self, which: int) -> None:
        self.sides[which].agreed = True

    def restart(self) -> None:
        for side in self.sides:
            side.stopped |= side.begun

    def begin(self, which: int, number: int) -> None:
        side = self.sides[which]
        if number not in side.answers:
            side.begun.add(number)

    def seal(self, which: int, number: int, norm: int) -> None:
        side, policy = self.sides[which], STUDIES[which].value.policy
        if number in side.answers:
            return
        side.begun.discard(number)
        if number in side.stopped:
            side.stopped.discard(number)
            side.answers[number] = 0, norm == 0
            return
        charge = wanted = ask(STUDIES[which], number).value.weight * norm
        if policy is Policy.CLIP:
            weight = ask(STUDIES[which], number).value.weight
            radius = 0 if side.refused else min(FULL, side.left // weight)
            charge = weight * min(norm, radius)
        given = charge <= side.left and (policy is Policy.SKIP or not side.refused or charge == 0)
        side.left -= charge if given else 0
        side.refused |= not given or charge < wanted
        side.answers[number] = charge if given else 0, given

    def settle(self, which: int, number: int) -> None:
        self.sides[which].settled.add(number)

    def forget(self, which: int) -> None:
        self.sides[which] = Side(refused=True, forgotten=True)

    def identify(self, target: str) -> None:
        self.target = target


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happens to a ledger, and to a model."""

    verb: str
    which: int = 0  #: of STUDIES
    number: int = 0  #: of the round
    norm: int = 0

    def to_model(self, model: Model) -> None:
        match self.verb:
            case "agree" | "forget":
                getattr(model, self.verb)(self.which)
            case "begin" | "settle":
                getattr(model, self.verb)(self.which, self.number)
            case "identify":
                model.identify(f"collector-{self.number}")
            case "seal":
                model.seal(self.which, self.number, self.norm)

    def to_ledger(
        self, ledger: Ledger, *, tell: Callable[[str], None] = lambda step: None
    ) -> bytes | None:
        """Do it, and return the bytes that may leave; `tell` as in `maker`, and when data are read."""
        study = STUDIES[self.which]
        match self.verb:
            case "agree":
                ledger.agree(study)
            case "forget":
                ledger.forget(study.hash)
            case "begin":
                if ledger.begin(ask(study, self.number)):
                    tell(f"{READING} {self.which} {self.number}")
            case "settle":
                sealed = ledger.sealed(study.hash, self.number)
                assert sealed is not None
                how = Settled.ACKED if self.number % 2 else Settled.EXPIRED
                ledger.settle(sealed.report_id, how)
            case "identify":
                ledger.keep_identity(Identity(target=f"collector-{self.number}"))
            case "seal":
                asked = ask(study, self.number)
                shrinks = study.value.policy is Policy.CLIP
                make = maker(ledger, asked, self.norm, shrinks=shrinks, tell=tell)
                return ledger.seal(asked, make).SerializeToString()
        return None


def differences(ledger: Ledger, model: Model) -> list[str]:
    """Where a ledger is not what it should be."""
    found = []
    for study, side in zip(STUDIES, model.sides, strict=True):
        seen = {
            "agreed": study in ledger.studies(),
            "left": ledger.remaining_units(study.hash) if side.agreed else side.left,
            "refused": ledger.ever_refused(study.hash) if side.agreed else side.refused,
            "answers": {row.number: (row.charge, row.given) for row in ledger.history(study.hash)},
            "unsettled": {report.round_hash for report in ledger.unsettled(study.hash)},
            "begun": {
                number
                for number in {*range(1, NUMBERS + 1), *side.answers, *side.begun}
                if ledger.begun(study.hash, number) == ask(study, number).hash
            },
        }
        wanted = {
            "agreed": side.agreed,
            "left": side.left,
            "refused": side.refused,
            "answers": side.answers,
            "unsettled": {ask(study, number).hash for number in side.answers.keys() - side.settled},
            "begun": side.begun,
        }
        found += [
            f"{study.value.name} {name}: {seen[name]} instead of {wanted[name]}"
            for name in seen
            if seen[name] != wanted[name]
        ]
    target = "" if ledger.identity is None else ledger.identity.target
    if target != model.target:
        found.append(f"target {target} instead of {model.target}")
    return found


def modelled(events: Iterable[Event], *, stopped: int | None = None) -> Model:
    """A model after these events; the process was another one after so many."""
    model = Model()
    for index, event in enumerate(events):
        if index == stopped:
            model.restart()
        event.to_model(model)
    return model


STORY = (
    Event(verb="identify", number=1),
    Event(verb="agree"),
    Event(verb="begin", number=1),
    Event(verb="seal", number=1, norm=FULL),
    Event(verb="seal", number=2, norm=FULL // 2),
    Event(verb="settle", number=1),
    Event(verb="agree", which=2),
    Event(verb="begin", which=2, number=1),
    Event(verb="begin", which=2, number=2),
    Event(verb="seal", which=2, number=1, norm=2 * FULL),
    Event(verb="begin", which=2, number=1),
    Event(verb="seal", number=3, norm=2 * FULL),
    Event(verb="identify", number=2),
    Event(verb="settle", number=2),
    Event(verb="seal", number=4, norm=FULL),
    Event(verb="begin", number=6),
    Event(verb="forget", which=2),
    Event(verb="seal", number=5, norm=0),
    Event(verb="begin", number=6),
)
"""Everything that can happen, once."""


def random_story(seed: int, *, length: int) -> tuple[Event, ...]:
    """Something that could happen."""
    dice = random.Random(seed)
    story: list[Event] = []
    model = Model()
    while len(story) < length:
        which, number = dice.randrange(len(STUDIES)), dice.randint(1, NUMBERS)
        side = model.sides[which]
        verbs = {"agree": 3, "begin": 6, "seal": 10, "settle": 4, "identify": 1, "forget": 0.3}
        (verb,) = dice.choices(list(verbs), list(verbs.values()))
        if verb == "agree" and side.agreed:
            verb, number = "seal", max(side.answers, default=0) + 1
        if verb in ("begin", "seal", "settle", "forget") and not side.agreed:
            continue
        if verb in ("begin", "seal") and number in side.settled:
            continue
        if verb == "settle" and number not in side.answers:
            continue
        norm = dice.choice((0, 1, FULL // 2, FULL, FULL, 3 * FULL))
        event = Event(verb=verb, which=which, number=number, norm=norm)
        event.to_model(model)
        story.append(event)
    return tuple(story)
