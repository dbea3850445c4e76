"""What a device and a collector have to do, rule by rule, as far as the other end can see it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from demur_proto.errors import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that must hold; docs/device-contract.md says why."""

    id: str  #: what to call it
    text: str  #: in a sentence
    optional: bool = False  #: a device may say that it does not offer this


def _rules(*, optional: bool = False, **texts: str) -> tuple[Rule, ...]:
    return tuple(
        Rule(id=name.replace("_", "-"), text=text, optional=optional)
        for name, text in texts.items()
    )


DEVICE_RULES = _rules(
    enrol_once="keeps its nonce before it enrols, so that a lost answer or a crash costs nothing",
    credential="shows its credential at every call but Enrol, and sends nothing else beside it",
    fields="speaks protocol version 1, and sends no field that the schema does not have",
    study_pinned="does not visit when it is given another study than the one it was told of",
    owners_policy="refuses a study beyond its owner's policy before it looks at any data",
    report_form="sends one report of the size that the round gives, with one id for each round",
    retry_same="sends the same bytes again when a receipt is lost, and after TRY_LATER",
    crash_same="sends the same bytes again after kill -9",
    crash_points="never has two reports to one round, whenever it is killed",
    repeated_round="answers a round that comes twice with the same bytes, or not at all",
    resume="asks again for the round of an unsettled report, or sends that by itself",
    settled="does not send a report again that was refused for good",
    one_number="refuses a second round under a number that it has answered",
    wrong_rounds="refuses a round whose definition is wrong, and sends nothing for it",
    owners_slot="refuses a round without a slot, and one whose slot is shorter than its owner accepts",
    features="puts the features of a question side by side in their order, be it one number or many",
    unknown_message="passes over a message of a kind that it does not know",
    oversized="comes back after a message far beyond any frame, with the bytes that it owes",
    budget_skip="answers and covers as policy skip says, to the last unit, across crashes",
    budget_retire="answers and covers as policy retire says, and is given nothing back",
    budget_clip="shrinks the answer that no longer fits as policy clip says, once",
    exhausted="goes on answering when its budget is gone: same size, same slot",
    failing="covers where its data have no such feature, or not such a value",
    clipping="clips a value that is too long, and keeps its direction",
    fresh_noise="never uses noise twice",
    noise_law="adds noise of the mean and the spread that the round implies",
    slots="sends when the slot has come: never before, and no later for what it decided",
    begun="covers, for nothing, a round that it had begun and not sealed when it was killed",
    chunks="sends a report that is too large for one message in chunks of 1 MiB",
    terminates="ends within seconds when it is told to",
) + _rules(
    optional=True,
    histograms="answers histograms with the symbol of its category, and with none for none or cover",
    running_counts="tells a state by its changes, word for word, and holds what later words will cost",
    gradients="fetches the model that a round names, and clips the gradient of its examples",
    burns="shows nothing of an evaluation that burns the processor without end",
    dies="shows nothing of an evaluation whose process is killed",
    eats="shows nothing of an evaluation that takes memory without end",
)

COLLECTOR_RULES = _rules(
    enrol="trades a token for an id of 16 bytes and a secret of 32",
    enrol_again="answers the same token with the same nonce the same again",
    enrol_refused="refuses a used token with another nonce, and an unknown one, in the same words",
    enrol_nonce="refuses a nonce of the wrong length",
    unauthenticated="refuses missing, wrong, doubled and foreign credentials in the same words",
    version="refuses another protocol version, and names the range that it speaks",
    study="gives the bytes of a study whose hash was asked for, and knows no other",
    hello_first="wants one hello, first and only first",
    welcome="welcomes first, then pushes the open rounds above after_round and no others",
    accepted="counts a sound report",
    duplicate="knows the same bytes again, in this visit and in the next",
    conflict="refuses other bytes under the same id, and a second id of the same device",
    invalid="refuses words that the mechanism cannot make, and goes on",
    wrong_length="ends the call at words or ids of the wrong length",
    unknown_round="ends the call at a report to a round that it does not know",
    unparsable="ends the call at bytes that are no message",
    oversized="ends the call at a message far beyond any frame",
    chunks="refuses chunks of a report that fits one message",
    frames_only="lets no device hand in frames",
    frame="gives each report of a frame its own disposition, and repeats the frame's number",
    closed="says ROUND_CLOSED once a round is closed, also of what was counted",
)


# What was found of each rule.


class Verdict(StrEnum):
    """What can be said of a rule."""

    PASS = "pass"
    FAIL = "fail"
    NOT_TESTED = "not tested"
    NOT_OFFERED = "not offered"  #: of an optional rule: the device says so, or keeps away


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule, what became of it, and why."""

    rule: Rule
    verdict: Verdict
    evidence: str

    @property
    def suffices(self) -> bool:
        """Whether whoever is tried out may conform with it."""
        declined = self.rule.optional and self.verdict is Verdict.NOT_OFFERED
        return self.verdict is Verdict.PASS or declined


class Verdicts:
    """Collects observations until they are verdicts: one that is against a rule decides.

    Args:
        rules: all there are.
        only: ids of those that are wanted; empty for all.

    Raises:
        ParameterError: a wanted rule is not there.

    >>> from demur_conformance.verdicts import Rule
    >>> book = Verdicts([Rule(id="a", text="..."), Rule(id="b", text="...")])
    >>> book.check("a", True, "seen once")
    >>> book.check("a", False, "seen twice")
    >>> [(f.rule.id, str(f.verdict), f.evidence) for f in book.findings()]
    [('a', 'fail', 'seen twice'), ('b', 'not tested', '')]
    """

    def __init__(self, rules: Sequence[Rule], only: Sequence[str] = ()) -> None:
        known = [rule.id for rule in rules]
        for each in only:
            if each not in known:
                raise ParameterError("only", each, f"one of {', '.join(known)}")
        self._known = frozenset(known)
        self._rules = [rule for rule in rules if not only or rule.id in only]
        self._for: dict[str, list[str]] = {}
        self._against: dict[str, list[str]] = {}
        self._without: dict[str, tuple[Verdict, str]] = {}

    def wants(self, *ids: str) -> bool:
        """Whether any of these rules is wanted."""
        return any(rule.id in ids for rule in self._rules)

    def check(self, rule: str, holds: bool, evidence: str) -> None:
        """Note an observation for a rule or against it.

        Raises:
            KeyError: there is no such rule, a bug.
        """
        if rule not in self._known:
            raise KeyError(rule)
        (self._for if holds else self._against).setdefault(rule, []).append(evidence)

    def decline(self, rule: str, evidence: str) -> None:
        """Note that a device does not offer what an optional rule is about; an observation decides."""
        self._without.setdefault(rule, (Verdict.NOT_OFFERED, evidence))

    def omit(self, rule: str, why: str) -> None:
        """Note why a rule cannot be tested; an observation decides."""
        self._without.setdefault(rule, (Verdict.NOT_TESTED, why))

    @property
    def is_lost(self) -> bool:
        """Whether every wanted rule has failed, so that nothing is left to find."""
        return all(rule.id in self._against for rule in self._rules)

    def findings(self) -> list[Finding]:
        """The verdicts so far, in the order of the rules."""
        return [self._finding(rule) for rule in self._rules]

    def all_pass(self) -> bool:
        """Whether every wanted rule was tested and holds, or is optional and not offered."""
        return all(found.suffices for found in self.findings())

    def _finding(self, rule: Rule) -> Finding:
        against, for_it = self._against.get(rule.id, []), self._for.get(rule.id, [])
        if against:
            return Finding(rule=rule, verdict=Verdict.FAIL, evidence=against[0])
        if for_it:
            evidence = "; ".join(dict.fromkeys(for_it))
            return Finding(rule=rule, verdict=Verdict.PASS, evidence=evidence)
        verdict, why = self._without.get(rule.id, (Verdict.NOT_TESTED, ""))
        return Finding(rule=rule, verdict=verdict, evidence=why)
