"""What was found of each rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from demur_proto.errors import ParameterError
from demur_sim.conformance.rules import Rule


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

    >>> from demur_sim.conformance.rules import Rule
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
