"""The command `demur conformance`."""

import argparse
import json
import shlex
import shutil
from pathlib import Path

import anyio

from demur_conformance.verdicts import (
    COLLECTOR_RULES,
    DEVICE_RULES,
    Finding,
    Rule,
    Verdict,
    Verdicts,
)
from demur_proto.errors import ParameterError, ours_in
from demur_proto.transport.channels import split_target

DESCRIPTION = """\
Try out a device, with --listen, or a collector, with --connect: a verdict for each rule of
docs/device-contract.md that the other end of the wire can see. The exit status is 0 only if every
rule was tested and holds, or is optional and the device does not offer it. The data are the tool's own, in studies that protect nothing: never let
a device take part that has a person's data."""


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `conformance`."""
    command = subparsers.add_parser(
        "conformance", help="try out a device or a collector", description=DESCRIPTION
    )
    side = command.add_mutually_exclusive_group(required=True)
    side.add_argument(
        "--listen", metavar="HOST:PORT", help="be the collector of a device; port 0 is any"
    )
    side.add_argument("--connect", metavar="HOST:PORT", help="be the devices of a collector")
    side.add_argument("--rules", action="store_true", help="list the rules, and end")
    command.add_argument(
        "--device-command",
        metavar="COMMAND",
        help="starts the device; without it a person is asked to, and to kill it",
    )
    command.add_argument(
        "--token-file", type=Path, metavar="FILE", help="enrolment tokens, one a line; 4 or more"
    )
    command.add_argument(
        "--ca", type=Path, metavar="FILE", help="certificates that vouch for the collector"
    )
    command.add_argument(
        "--gateway-credential", type=Path, metavar="FILE", help="of a gateway, to test frames"
    )
    command.add_argument(
        "--close-command", metavar="COMMAND", help="closes the open round, to test what follows"
    )
    command.add_argument(
        "--only", action="append", default=[], metavar="RULE", help="this rule; may be repeated"
    )
    command.add_argument("--jobs", type=int, default=2, metavar="N", help="devices at once")
    command.add_argument(
        "--patience", type=float, default=20.0, metavar="S", help="how long to wait for a report"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `demur conformance`."""
    if options.rules:
        return _print_rules(as_json=options.json)
    _check(options)
    verdicts = Verdicts(DEVICE_RULES if options.listen else COLLECTOR_RULES, options.only)
    try:
        anyio.run(_try_device if options.listen else _try_collector, options, verdicts)
    except BaseExceptionGroup as group:
        error = ours_in(group)
        if error is None:
            raise
        raise error from None
    findings = verdicts.findings()
    print(json.dumps(fields(findings)) if options.json else text(findings))
    return 0 if verdicts.all_pass() else 1


async def _try_device(options: argparse.Namespace, verdicts: Verdicts) -> None:
    from demur_conformance.device_run import Trial, try_device

    host, _, port = options.listen.rpartition(":")
    trial = Trial(
        command=_words("device-command", options.device_command),
        host=host,
        port=int(port),
        patience_s=options.patience,
        jobs=options.jobs,
    )
    await try_device(trial, verdicts)


async def _try_collector(options: argparse.Namespace, verdicts: Verdicts) -> None:
    from demur_conformance.collector import Visitor, try_collector

    visitor = Visitor.of(
        options.connect,
        tokens=options.token_file,
        gateway=options.gateway_credential,
        ca=options.ca,
        close_command=_words("close-command", options.close_command),
    )
    await try_collector(visitor, verdicts)


def _check(options: argparse.Namespace) -> None:
    if options.listen:
        split_target(options.listen.replace(":0", ":1"))
    elif options.token_file is None:
        raise ParameterError("token-file", None, "a file of tokens, which demur admin makes")
    if not 1 <= options.jobs <= 64:
        raise ParameterError("jobs", options.jobs, "from 1 to 64")
    if not 0 < options.patience <= 3600:
        raise ParameterError("patience", options.patience, "above 0, at most 3600 s")


def _words(name: str, command: str | None) -> tuple[str, ...]:
    """The words of a command, as a shell takes it apart; looked for before anything is served."""
    try:
        words = tuple(shlex.split(command or ""))
    except ValueError as error:
        raise ParameterError(name, command, f"one that a shell can read ({error})") from None
    if words and shutil.which(words[0]) is None:
        raise ParameterError(name, command, "one that can be run (there is no such program)")
    return words


def fields(findings: list[Finding]) -> dict[str, object]:
    """What was found, for programs."""
    return {
        "conforms": all(found.suffices for found in findings),
        "rules": [
            {
                "rule": found.rule.id,
                "text": found.rule.text,
                "verdict": str(found.verdict),
                "evidence": found.evidence,
            }
            for found in findings
        ],
    }


def text(findings: list[Finding]) -> str:
    """What was found, for people: a line for each rule, and below it why it does not hold."""
    width = max(len(found.rule.id) for found in findings)
    lines = []
    for found in findings:
        lines.append(f"{found.verdict:11}  {found.rule.id:{width}}  {found.rule.text}")
        if found.verdict is not Verdict.PASS and found.evidence:
            word = "but" if found.verdict is Verdict.FAIL else "why"
            lines.append(f"{'':11}  {'':{width}}  {word}: {found.evidence}")
    counts = {each: sum(found.verdict is each for found in findings) for each in Verdict}
    lines.append(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return "\n".join(lines)


def _print_rules(*, as_json: bool) -> int:
    sides: dict[str, tuple[Rule, ...]] = {"device": DEVICE_RULES, "collector": COLLECTOR_RULES}
    if as_json:
        print(json.dumps({side: {r.id: r.text for r in rules} for side, rules in sides.items()}))
        return 0
    width = max(len(rule.id) for rules in sides.values() for rule in rules)
    for side, rules in sides.items():
        print(f"A {side}")
        for rule in rules:
            print(f"  {rule.id:{width}}  {rule.text}")
    return 0
