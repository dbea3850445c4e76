"""The command `demur admin`."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demur_server.config import ServerConfig


DESCRIPTION = """\
Look into a collector's store and decide who may call. Every command but restore works whether or not
the collector runs: what a running one has to know, it takes up within seconds. None of them shows a
report, a device's secret, or what an open round has added up so far."""

LINES = {
    # command: (what it is for, wants a study)
    "studies": ("list the studies", False),
    "rounds": ("list the rounds", True),
    "releases": ("list the releases", True),
    "devices": ("list the ids of the devices that enrolled, and which are revoked", False),
    "credentials": ("list the credentials of analysts and gateways, by name", False),
    "verify": ("check that the store holds together; exit 1 if it does not", False),
}


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `admin`."""
    command = subparsers.add_parser(
        "admin", help="look into a collector's store", description=DESCRIPTION
    )
    parts = command.add_subparsers(title="commands", dest="part", required=True, metavar="COMMAND")
    for name, (purpose, wants_study) in LINES.items():
        part = _part(parts, name, purpose)
        if wants_study:
            part.add_argument("--study", metavar="S", help="only this one: its name, or its hash")
    part = _part(parts, "tokens", "make enrolment tokens, each for one device; shown only once")
    part.add_argument("--count", type=int, default=1, metavar="N", help="how many (default: 1)")
    part.add_argument(
        "--out", type=Path, metavar="FILE", help="write them there, for its owner only"
    )
    part = _part(parts, "revoke", "refuse a device from now on, for ever")
    part.add_argument("device", metavar="DEVICE", help="its id: 32 hexadecimal digits")
    part.add_argument(
        "--reason",
        required=True,
        metavar="TEXT",
        help="why; it is public and must not depend on what the device reported",
    )
    part = _part(parts, "credential", "make a credential; shown only once")
    part.add_argument("name", metavar="NAME", help="whose it is")
    what = part.add_mutually_exclusive_group(required=True)
    what.add_argument("--role", choices=["analyst", "gateway"], help="what it is for")
    what.add_argument("--remove", action="store_true", help="let nobody in with it any more")
    part.add_argument("--out", type=Path, metavar="FILE", help="write it there, for its owner only")
    part = _part(parts, "export", "print the releases, and nothing that is not public")
    part.add_argument("--study", metavar="S", help="only this one: its name, or its hash")
    part.add_argument(
        "--format", choices=["csv", "json"], default="csv", help="what to print (default: csv)"
    )
    part = _part(parts, "backup", "copy the store into a file, while the collector runs")
    part.add_argument("file", type=Path, metavar="FILE", help="the file to make")
    part = _part(parts, "restore", "make a store from such a file, in an empty folder")
    part.add_argument("file", type=Path, metavar="FILE", help="what `backup` made")
    command.set_defaults(run=run)


def _part(
    parts: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, purpose: str
) -> argparse.ArgumentParser:
    part = parts.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
    part.add_argument("--config", type=Path, metavar="FILE", help="the collector's TOML file")
    part.add_argument(
        "--folder", metavar="DIR", help="the collector's data folder (default: demur-data)"
    )
    part.add_argument("--json", action="store_true", help="print JSON")
    part.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks"
    )
    return part


def run(options: argparse.Namespace) -> int:
    """Run `demur admin`."""
    from demur_server.config import load_config

    config = load_config(options.config, overrides={"folder": options.folder})
    actions = {
        "studies": _list,
        "rounds": _list,
        "releases": _list,
        "export": _export,
        "verify": _verify,
        "tokens": _tokens,
        "revoke": _revoke,
        "devices": _devices,
        "credential": _credential,
        "credentials": _credentials,
        "backup": _backup,
        "restore": _restore,
    }
    return actions[options.part](options, config)


# ---- looking ---------------------------------------------------------------------------------


def _list(options: argparse.Namespace, config: "ServerConfig") -> int:
    from dataclasses import asdict

    from demur_server.admin.admin import open_door
    from demur_server.admin.overview import releases_of, round_lines, study_lines
    from demur_server.formatting import release_table

    rows: list[dict[str, Any]]
    with open_door(config) as door, door.looking() as sql:
        if options.part == "studies":
            rows = [asdict(line) for line in study_lines(sql)]
        elif options.part == "rounds":
            rows = [asdict(line) for line in round_lines(sql, options.study)]
        else:
            rows = [release_table(each) for each in releases_of(sql, options.study)]
    if options.json:
        print(json.dumps(rows))
        return 0
    if options.part == "releases":
        rows = [_release_row(row) for row in rows]
    _print_table(rows, nothing=f"no {options.part} yet")
    return 0


def _release_row(row: dict[str, Any]) -> dict[str, Any]:
    shown = " ".join(f"{value:,.6g}" for value in row["estimate"][:3])
    if len(row["estimate"]) > 3:
        shown += f" … ({len(row['estimate'])} in all)"
    published = bool(row["estimate"])
    return {
        "study": row["study"],
        "round": row["round"],
        "reports": row["reports"],
        "estimate": shown if published else f"withheld: {row['withheld'].replace('_', ' ')}",
        "interval": _first_interval(row) if published else "",
    }


def _first_interval(row: dict[str, Any]) -> str:
    """That of the first estimate, or why there is none."""
    from demur_proto.release import Estimand

    if row["estimand"] == Estimand.S_SHRUNK:
        return f"none: of {Estimand.S_SHRUNK.told}"
    if not row["low"]:
        return "none"
    return f"{row['low'][0]:,.6g} to {row['high'][0]:,.6g}"


def _export(options: argparse.Namespace, config: "ServerConfig") -> int:
    from demur_server.admin.admin import open_door
    from demur_server.admin.overview import releases_of
    from demur_server.formatting import csv_pieces, release_table

    with open_door(config) as door, door.looking() as sql:
        releases = releases_of(sql, options.study)
    if options.json or options.format == "json":
        print(json.dumps([release_table(each) for each in releases]))
    else:
        sys.stdout.writelines(csv_pieces(releases))
    return 0


def _verify(options: argparse.Namespace, config: "ServerConfig") -> int:
    from dataclasses import asdict

    from demur_server.admin.admin import open_door
    from demur_server.admin.verifying import verify

    with open_door(config) as door, door.looking() as sql:
        found = verify(sql, keys_folder=config.keys_folder)
        name = door.name
    if options.json:
        print(json.dumps({"store": name, "sound": not found.problems, **asdict(found)}))
        return 1 if found.problems else 0
    for problem in found.problems:
        print(f"problem: {problem}")
    for note in found.notes:
        print(f"note: {note}")
    verdict = "is sound" if not found.problems else "is NOT sound: restore a backup"
    print(
        f"{name} {verdict}: {found.studies} studies, {found.rounds} rounds ({found.open_rounds} "
        f"open), {found.releases} releases, {found.reports:,} reports"
    )
    return 1 if found.problems else 0


# ---- who may call ----------------------------------------------------------------------------


def _tokens(options: argparse.Namespace, config: "ServerConfig") -> int:
    from demur_server.admin.admin import make_tokens, open_door

    with open_door(config) as door:
        made = make_tokens(door, count=options.count, out=options.out)
    told = {"tokens": made} if options.out is None else {"file": str(options.out)}
    line = "\n".join(made) if options.out is None else f"wrote {options.out}"
    print(json.dumps(told) if options.json else line)
    return 0


def _revoke(options: argparse.Namespace, config: "ServerConfig") -> int:
    from demur_server.admin.admin import open_door, revoke

    with open_door(config) as door:
        revoke(door, options.device, reason=options.reason)
    if options.json:
        print(json.dumps({"revoked": options.device.lower()}))
    else:
        print(f"revoked {options.device.lower()}; a running collector knows within seconds")
    return 0


def _devices(options: argparse.Namespace, config: "ServerConfig") -> int:
    from demur_server.admin.admin import list_devices, open_door

    with open_door(config) as door:
        found = list_devices(door)
    rows = [{"device": device.hex(), "revoked": reason} for device, reason in found]
    if options.json:
        print(json.dumps(rows))
    else:
        shown = [{**row, "revoked": row["revoked"] or ""} for row in rows]
        _print_table(shown, nothing="no devices yet")
    return 0


def _credential(options: argparse.Namespace, config: "ServerConfig") -> int:
    from demur_server.admin.admin import make_credential, open_door, remove_credential
    from demur_server.store.base import Role

    with open_door(config) as door:
        if options.remove:
            remove_credential(door, options.name)
            told = {"removed": options.name}
            line = f"removed {options.name}; a running collector knows within seconds"
        else:
            made = make_credential(door, options.name, role=Role(options.role), out=options.out)
            told = {"name": options.name, "role": options.role}
            told |= {"file": str(options.out)} if options.out else {"credential": made}
            line = f"wrote {options.out}" if options.out else made
    print(json.dumps(told) if options.json else line)
    return 0


def _credentials(options: argparse.Namespace, config: "ServerConfig") -> int:
    from demur_server.admin.admin import list_credentials, open_door

    with open_door(config) as door:
        rows = [{"name": each.name, "role": each.role.value} for each in list_credentials(door)]
    if options.json:
        print(json.dumps(rows))
    else:
        _print_table(rows, nothing="no credentials yet")
    return 0


# ---- copies ----------------------------------------------------------------------------------


def _backup(options: argparse.Namespace, config: "ServerConfig") -> int:
    from demur_server.admin.admin import open_door
    from demur_server.admin.backup import back_up

    with open_door(config) as door:
        size = back_up(door, options.file)
    if options.json:
        print(json.dumps({"file": str(options.file), "bytes": size, "keys": False}))
    else:
        master = config.keys_folder / "master.key"
        print(
            f"wrote {options.file} ({size:,} bytes) without keys: keep {master} apart from it, or "
            "devices have to enrol anew after a restore"
        )
    return 0


def _restore(options: argparse.Namespace, config: "ServerConfig") -> int:
    from dataclasses import asdict

    from demur_server.admin.admin import check_restorable
    from demur_server.admin.backup import restore_file, restore_postgres

    check_restorable(config)
    if config.store.postgres is None:
        place = str(config.sqlite_path)
        restored = restore_file(options.file, config.sqlite_path)
    else:
        place = "the database"
        restored = restore_postgres(options.file, config.store.postgres)
    has_master = (config.keys_folder / "master.key").exists()
    if options.json:
        print(json.dumps({"store": place, "master_key": has_master, **asdict(restored)}))
        return 0
    print(
        f"restored {place}: {restored.studies} studies, {restored.rounds} rounds, "
        f"{restored.releases} releases"
    )
    print(
        f"not restored: {restored.voided_rounds} rounds that were open (they will be withheld), "
        f"{restored.dropped_tokens} unused tokens, {restored.dropped_credentials} credentials of "
        "analysts and gateways (demur serve makes a new one)"
    )
    print(
        f"no study goes on, since what it asked after the backup is not known here: make a new "
        f"one, with {restored.mark} in its name"
    )
    print("revoke again whom you revoked since the backup, before devices can reach it")
    if not has_master:
        print(f"put {config.keys_folder / 'master.key'} back first, or devices must enrol anew")
    return 0


def _print_table(rows: Sequence[dict[str, Any]], *, nothing: str) -> None:
    """Columns as wide as they need to be; hashes by their first digits."""
    if not rows:
        print(nothing)
        return
    names = list(rows[0])
    texts = [[_cell(name, row[name]) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *texts, strict=True)]
    for line in [names, *texts]:
        cells = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def _cell(name: str, value: object) -> str:
    if name in ("study", "round") and isinstance(value, str):
        return value[:16]
    return f"{value:g}" if isinstance(value, float) else str(value)
