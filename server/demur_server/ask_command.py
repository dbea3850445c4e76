"""The command `demur ask`."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demur_proto.credentials import NamedSecret
    from demur_proto.release import Release
    from demur_proto.study import Study

DESCRIPTION = """\
Ask every device of a study one question, wait for the reports, and print the release. The question is
the sum over people of the features that are named, each with its parameters:

  demur ask active period=3 --study visits

A study that the collector does not have yet is made, from its name and the options under "a new
study". One that it has goes on, and then such an option must say what the study says."""

CONTRACT = (
    # flag, argument of design_study, type, what it is for
    ("--epsilon", "epsilon", float, "ε of the whole study, nats (default: 1)"),
    ("--delta", "delta", float, "δ of the whole study (default: 1e-6)"),
    (
        "--answers",
        "answers",
        int,
        "answers at the full clip that a device can afford (default: 15)",
    ),
    ("--minimum-cohort", "minimum_cohort", int, "fewest reports that may be released"),
    ("--dishonest", "dishonest", int, "how many of these may add no noise (default: 0)"),
    ("--view", "view", str, "local or aggregate (default: aggregate)"),
    ("--measure", "measure", str, "gdp or zcdp (default: gdp)"),
    ("--policy", "policy", str, "skip, retire or clip (default: skip)"),
    ("--horizon", "horizon", int, "most rounds; 0: not fixed (default: 0)"),
    ("--grid-exponent", "grid_exponent", int, "grid step is 2^this (default: -14)"),
    ("--maximum-dimension", "maximum_dimension", int, "most coordinates of a report (default: 1)"),
)
DEFAULTS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "answers": 15}
LONGEST_SHOWN = 20  #: estimates in the form for people


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
        "--clip", type=float, default=1.0, metavar="C", help="ℓ₂ radius of a value (default: 1)"
    )
    command.add_argument(
        "--on-grid", action="store_true", help="every possible value is a multiple of the grid step"
    )
    command.add_argument(
        "--dimension", type=int, metavar="D", help="coordinates in all (default: one a feature)"
    )
    command.add_argument("--json", action="store_true", help="print the release as JSON")
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
    contract = command.add_argument_group("a new study")
    for flag, name, kind, purpose in CONTRACT:
        contract.add_argument(flag, dest=name, type=kind, metavar="X", help=purpose)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `demur ask`."""
    import anyio

    from demur_server.choosing import describe_feature, read_features

    features = read_features(options.question)
    wanted = {
        name: getattr(options, name)
        for _, name, _, _ in CONTRACT
        if getattr(options, name) is not None
    }

    async def ask() -> "tuple[Study, Release]":
        from demur_server.analyst import Analyst

        place = _place(options)
        study = await _study(place, options.study, wanted, clip=options.clip)
        async with Analyst.create(place.pop("target"), study, **place) as analyst:
            release = await analyst.ask(
                *features,
                dimension=options.dimension,
                clip=options.clip,
                on_grid=options.on_grid,
                reports=options.reports,
                timeout_s=options.timeout,
            )
        return study, release

    try:
        study, release = anyio.run(ask)
    except KeyboardInterrupt:
        from demur_proto.errors import StateError

        raise StateError("interrupted; if the round was opened, it stays open") from None
    if options.json:
        from demur_server.exporting import release_table

        print(json.dumps({"study_name": study.name, **release_table(release)}))
    else:
        print(_told(", ".join(map(describe_feature, features)), release))
    return 0


def _place(options: argparse.Namespace) -> dict[str, Any]:
    """Where the collector is, and what to show it."""
    from demur_proto.channels import ClientTls
    from demur_proto.errors import ParameterError
    from demur_server.data_folder import credential_file, find_listening, read_secret_file

    target = options.target
    if target is None:
        listening = find_listening(options.folder)
        if listening is None:
            raise ParameterError(
                "--target", None, f"given, as no collector runs on the folder {options.folder}"
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


async def _study(
    place: dict[str, Any], name: str | None, wanted: dict[str, Any], *, clip: float
) -> "Study":
    """The study that is meant: the collector's, or a new one."""
    from demur_proto.errors import NotFoundError, ParameterError
    from demur_proto.study import Measure, Policy, View, design_study
    from demur_server.analyst import list_studies
    from demur_server.choosing import matches

    for key, kind in {"view": View, "measure": Measure, "policy": Policy}.items():
        if key in wanted:
            if wanted[key] not in list(kind):
                raise ParameterError(f"--{key}", wanted[key], " or ".join(kind))
            wanted[key] = kind(wanted[key])
    found = [study for study, _ in await list_studies(**place)]
    meant = found if name is None else [each for each in found if matches(each, name)]
    if not meant and name is not None and "minimum_cohort" in wanted:
        return design_study(name=name, clip=clip, **{**DEFAULTS, **wanted})
    if len(meant) != 1:
        choices = ", ".join(f"{each.hash.hex()[:16]} ({each.value.name})" for each in found[:5])
        which = "" if name is None else f" {name!r}"
        raise NotFoundError(
            f"there are {len(meant)} studies{which} of {len(found)}: {choices or 'none'}; say "
            "--study, and for a new one at least --minimum-cohort"
        )
    study = meant[0].value
    for key, value in wanted.items():
        flag = f"--{key.replace('_', '-')}"
        if key == "answers":
            raise ParameterError(flag, value, f"left out, as there is a study {study.name!r}")
        kept = getattr(study, "base_grid_exponent" if key == "grid_exponent" else key)
        if kept != value:
            raise ParameterError(flag, value, f"{kept}, as the study {study.name!r} says")
    return study


def _told(question: str, release: "Release") -> str:
    """A release for people; a number never comes without its guarantee."""
    where = f"round {release.number}, {release.reports:,} reports"
    if not release.estimate.size:
        return f"{question}: withheld, fewer reports than the study allows ({where})"
    shown = [
        f"{value:,.6g} ± {release.half_width_at(at):,.6g}"
        for at, value in enumerate(release.estimate[:LONGEST_SHOWN].tolist())
    ]
    if len(release.estimate) > LONGEST_SHOWN:
        shown.append(f"… ({len(release.estimate)} in all; --json prints them)")
    separator = " " if len(shown) == 1 else "\n  "
    return (
        f"{question}:{separator}{separator.join(shown)}\n"
        f"{release.confidence:.0%} interval for the sum over the people whose devices could afford "
        f"the answer; {where}\n{release.guarantee}"
    )
