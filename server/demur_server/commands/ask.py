"""What every command for analysts is told about where the collector is, and what to show it."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demur_proto.release import Release
    from demur_proto.study import Study
    from demur_proto.transport.credentials import NamedSecret


def add_place(command: argparse.ArgumentParser) -> None:
    """Add the options that say where the collector is."""
    place = command.add_argument_group("the collector")
    place.add_argument(
        "--folder",
        type=Path,
        default=Path("demur-data"),
        metavar="DIR",
        help="data folder of a collector on this machine, which says where it listens and holds "
        "the first credential (default: demur-data)",
    )
    place.add_argument("--target", metavar="HOST:PORT", help="its port for analysts")
    place.add_argument("--credential", type=Path, metavar="FILE", help="an analyst's credential")
    place.add_argument("--ca", type=Path, metavar="FILE", help="CA that vouches for it, PEM")
    place.add_argument("--certificate", type=Path, metavar="FILE", help="one's own, for mTLS")
    place.add_argument("--key", type=Path, metavar="FILE", help="its private key")
    place.add_argument(
        "--insecure-plaintext",
        action="store_true",
        help="without a CA, send the credential over the network all the same",
    )


def place_of(options: argparse.Namespace) -> dict[str, Any]:
    """Where the collector is, and what to show it."""
    from demur_proto.errors import ParameterError, StateError
    from demur_proto.transport.channels import ClientTls
    from demur_server.admin.data_folder import credential_file, find_listening, read_secret_file

    target = options.target
    if target is None:
        listening = find_listening(options.folder)
        if listening is None:
            raise StateError(
                f"no collector runs on the folder {options.folder}: name another --folder, or say "
                "--target HOST:PORT"
            )
        target = listening.analyst
    file = options.credential
    if file is None and credential_file(options.folder).exists():
        file = credential_file(options.folder)
    secret: NamedSecret | None = None if file is None else read_secret_file(file)
    tls = None
    if options.ca is not None:
        tls = ClientTls.read(options.ca, certificate=options.certificate, key=options.key)
    elif options.certificate or options.key:
        raise ParameterError("--ca", None, "given with --certificate and --key")
    return {
        "target": target,
        "credential": secret,
        "tls": tls,
        "insecure_plaintext": options.insecure_plaintext,
    }


# The command `demur ask`.

DESCRIPTION = """\
Ask every device of a study one question, wait for the reports, and print the release. The question is
the sum over people of the features that are named, each with its parameters:

  demur ask active period=3 --study visits

or, with --categories, how many people are in each category of one feature:

  demur ask app period=3 --study apps --categories 16

or, with --running, how many people are in a state now, from the changes of one feature alone:

  demur ask online --running --study online --horizon 64

The same command again asks its next round; a study without --horizon goes on for ever.

A study that the collector does not have yet is made, from its name and the options under "a new
study". One that it has goes on, and then such an option must say what the study says; of a
sum or a running count --answers is left out then."""

CONTRACT = (
    # flag, type, what it is for
    ("--epsilon", float, "ε of the whole study, nats (default: 1)"),
    ("--delta", float, "δ of the whole study (default: 1e-6)"),
    (
        "--answers",
        int,
        "answers that a device can afford: of full size, or changes of a state (default: 15)",
    ),
    ("--minimum-cohort", int, "fewest reports that may be released"),
    ("--dishonest", int, "how many of these may add no noise (default: 0)"),
    ("--view", str, "local or aggregate (default: aggregate; a histogram's is local)"),
    (
        "--measure",
        str,
        "gdp or zcdp (default: gdp); of a histogram pure, zcdp or answers (default: the one that gives most)",
    ),
    ("--policy", str, "skip, retire or clip (default: skip)"),
    ("--horizon", int, "most rounds; 0: not fixed (default: 0)"),
    ("--grid-exponent", int, "grid step is 2^this (default: -14)"),
    (
        "--maximum-dimension",
        int,
        "most coordinates or categories of a report (default: 1, or --categories)",
    ),
)
HISTOGRAM = (
    (
        "--categories",
        int,
        "K",
        "how many there are; a person's is a number from 0 to K - 1, or with K = 1 yes is 1",
    ),
    (
        "--mechanism",
        str,
        "M",
        "how devices randomise theirs: krr, sue, oue, blh, olh, hadamard or subset (default: oue; with K = 1 krr)",
    ),
    (
        "--question-epsilon",
        float,
        "E",
        "ε of this one answer, nats (default: the largest at which --answers of them fit)",
    ),
)


RUNNING = (
    (
        "--segment",
        int,
        "H",
        "rounds of its first segment; each later one has twice as many (default: --horizon, or 64)",
    ),
    ("--bound", int, "B", "the largest state (default: 1)"),
    (
        "--cohort",
        int,
        "N",
        "devices that are to answer; fewer reports are scaled up (default: the minimum cohort)",
    ),
)


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `ask`."""
    command = subparsers.add_parser(
        "ask",
        help="ask the devices of a study one question",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "question",
        nargs="+",
        metavar="FEATURE",
        help="what to add up over people, each followed by its parameters KEY=VALUE",
    )
    command.add_argument(
        "--study", metavar="S", help="its name, or 8 digits of its hash (default: the only one)"
    )
    command.add_argument(
        "--reports", type=int, metavar="N", help="wait for so many (default: the minimum cohort)"
    )
    command.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="seconds to wait (default: 60)"
    )
    command.add_argument(
        "--clip", type=float, metavar="C", help="ℓ₂ radius of a value (default: 1)"
    )
    command.add_argument(
        "--on-grid",
        action="store_true",
        default=None,
        help="every possible value is a multiple of the grid step",
    )
    command.add_argument(
        "--dimension", type=int, metavar="D", help="coordinates in all (default: one a feature)"
    )
    command.add_argument(
        "--weights",
        metavar="W",
        help="of what the features give, a row for each coordinate, as in 1,0.5;0,-1 (default: add "
        "up the numbers themselves)",
    )
    command.add_argument(
        "--answer-after-ms",
        type=int,
        metavar="MS",
        help="when devices send: so long after they received the round, whatever it took them to "
        "compute (default: 1000)",
    )
    command.add_argument("--json", action="store_true", help="print the release as JSON")
    histogram = command.add_argument_group("a histogram")
    for flag, kind, metavar, purpose in HISTOGRAM:
        histogram.add_argument(flag, type=kind, metavar=metavar, help=purpose)
    running = command.add_argument_group("a running count")
    for flag, described in (
        ("--running", "count a state, from 0 to B, by its changes"),
        ("--anew", "begin another count: everybody tells and pays for their state anew"),
    ):
        running.add_argument(flag, action="store_true", default=None, help=described)
    for flag, kind, metavar, purpose in RUNNING:
        running.add_argument(flag, type=kind, metavar=metavar, help=purpose)
    add_place(command)
    contract = command.add_argument_group("a new study")
    for flag, kind, purpose in CONTRACT:
        contract.add_argument(flag, type=kind, metavar="X", help=purpose)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `demur ask`."""
    import anyio

    from demur_proto.checks import check_integer, check_positive
    from demur_proto.errors import ParameterError
    from demur_server.commands.question import Question
    from demur_server.formatting import told
    from demur_server.parsing import describe_feature, read_features

    if options.reports is not None:
        check_integer("--reports", options.reports, 0)
    check_positive("--timeout", options.timeout)
    features = read_features(options.question)
    names = [flag for flag, *_ in (*CONTRACT, *HISTOGRAM, *RUNNING)]
    names += [
        "--clip",
        "--on-grid",
        "--dimension",
        "--weights",
        "--answer-after-ms",
        "--running",
        "--anew",
    ]
    keys = [flag.removeprefix("--").replace("-", "_") for flag in names]
    question = Question.read(features, {key: getattr(options, key) for key in keys})
    slot_ms = question.given["answer_after_ms"]
    slot_s = slot_ms / 1000
    if not options.timeout > slot_s:
        raise ParameterError(
            "--timeout", options.timeout, f"longer than the {slot_s:g} s after which devices answer"
        )

    async def ask() -> "tuple[Study, Release]":
        from demur_server.analyst import Analyst
        from demur_server.analyst_calls import list_studies

        place = place_of(options)
        found = [study for study, _ in await list_studies(**place)]
        study = question.study(found, options.study)
        target = place.pop("target")
        async with Analyst.create(target, study, answer_after_ms=slot_ms, **place) as analyst:
            release = await question.ask(
                analyst, reports=options.reports, timeout_s=options.timeout
            )
        return study, release

    try:
        study, release = anyio.run(ask)
    except KeyboardInterrupt:
        from demur_proto.errors import StateError

        raise StateError("interrupted; if the round was opened, it stays open") from None
    if options.json:
        from demur_server.formatting import release_table

        print(json.dumps({"study_name": study.name, **release_table(release)}))
    else:
        asked = ", ".join(map(describe_feature, features))
        print(told(asked, release, histogram=options.categories is not None))
    return 0
