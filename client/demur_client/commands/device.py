"""Log lines for programs."""

import argparse
import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demur_client.device_folder import DeviceFolder
    from demur_client.ledger.base import Ledger
    from demur_proto.study import Study
    from demur_proto.wire.definition import Defined


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, where it comes from, message.

    >>> record = logging.LogRecord("a", logging.INFO, "", 0, "round %d", (3,), None)
    >>> json.loads(JsonLines().format(record))["message"]
    'round 3'
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {
            "time": at,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        return json.dumps(fields)


# The command `demur device`.

DESCRIPTION = """\
Run one person's device: it answers studies inside its owner's policy, with its owner's data, and
keeps its own budget. Everything it needs is in one folder. Enrol it once, then let it run; it may be
stopped and started at any time."""
INIT = "Make the folder of a device: a ledger, and a policy to be edited."
ENROL = "Make the device known to a collector, with a token from whoever runs it. Once."
RUN = """\
Answer rounds until told to stop (SIGINT or SIGTERM). What is logged is public: nothing of it tells
of the owner's data or of what is left of a budget."""
STATUS = "Say what is public: where the device is enrolled, in which studies it takes part."
EXPLAIN = """\
Show the owner what was asked, what it cost, what is left and what went wrong with the data. Nobody
else should see it."""
TRY = """\
Show the owner the value of a feature, or why there is none. Nothing is sent or charged. The limits of
[source] hold; those of an evaluation (evaluation_memory_mib and so on, and the slot) do not."""
FORGET = """\
Erase what is remembered of a study, or of all of them and of the collector. What was left of a
budget counts as spent, for ever."""
UNIT = "Print a systemd unit that runs the device."
HELP = {
    "init": "make the folder of a device",
    "enrol": "make the device known to a collector",
    "run": "answer rounds until told to stop",
    "status": "say what is public",
    "explain": "show the owner what was asked, what it cost and what is left",
    "try": "show the owner the value of a feature",
    "forget": "erase what is remembered; the budget stays spent",
    "unit": "print a systemd unit",
}


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `device`."""
    command = subparsers.add_parser(
        "device", help="run one person's device", description=DESCRIPTION
    )
    verbs = command.add_subparsers(title="verbs", dest="verb", required=True, metavar="VERB")

    def verb(name: str, text: str, run: Callable[[argparse.Namespace], int]) -> Any:
        added = verbs.add_parser(name, help=HELP[name], description=text)
        added.add_argument(
            "--folder",
            type=Path,
            default=Path("demur-device"),
            metavar="DIR",
            help="of the device (default: demur-device)",
        )
        added.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks"
        )
        if name != "unit":
            added.add_argument("--json", action="store_true", help="print JSON")
        added.set_defaults(run=run, usage_error=added.error)
        return added

    verb("init", INIT, run_init)
    enrol = verb("enrol", ENROL, run_enrol)
    enrol.add_argument("--target", required=True, metavar="HOST:PORT", help="its port for devices")
    enrol.add_argument("--token", required=True, type=Path, metavar="FILE", help="with the token")
    enrol.add_argument("--ca", type=Path, metavar="FILE", help="CA that vouches for it, PEM; kept")
    enrol.add_argument(
        "--certificate",
        type=Path,
        metavar="FILE",
        help="the device's own, PEM, where its collector asks for one; read at every visit",
    )
    enrol.add_argument("--key", type=Path, metavar="FILE", help="its private key; likewise")
    running = verb("run", RUN, run_run)
    running.add_argument("--verbose", action="store_true", help="log every visit and round")
    verb("status", STATUS, run_status)
    explain = verb("explain", EXPLAIN, run_explain)
    explain.add_argument("--study", metavar="HASH", help="only this one; its first digits do")
    tried = verb("try", TRY, run_try)
    tried.add_argument("feature", metavar="FEATURE", help="its name")
    tried.add_argument("parameters", nargs="*", metavar="NAME=NUMBER", help="what it is asked with")
    forget = verb("forget", FORGET, run_forget)
    which = forget.add_mutually_exclusive_group(required=True)
    which.add_argument("--study", metavar="HASH", help="this one; its first digits do")
    which.add_argument("--all", action="store_true", help="all, and the collector")
    unit = verb("unit", UNIT, run_unit)
    unit.add_argument(
        "--user", default="demur", metavar="NAME", help="who runs it (default: demur)"
    )


def run_init(options: argparse.Namespace) -> int:
    """Run `demur device init`."""
    folder = _folder(options)
    folder.make()
    _say(
        options,
        {"folder": str(folder.path), "policy": str(folder.policy_path)},
        f"made {folder.path}: say in {folder.policy_path} what it takes part in, then enrol it",
    )
    return 0


def run_enrol(options: argparse.Namespace) -> int:
    """Run `demur device enrol`."""
    import anyio

    from demur_client.enrolment import enrol_device
    from demur_proto.errors import ParameterError
    from demur_proto.transport.channels import ClientTls
    from demur_proto.transport.credentials import read_token

    try:
        token = read_token(options.token.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        if isinstance(error, ParameterError):
            raise
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ParameterError(
            "--token", str(options.token), f"a file with a token ({reason})"
        ) from None
    tls = None
    if options.ca:
        tls = ClientTls.read(options.ca, certificate=options.certificate, key=options.key)
    elif options.certificate or options.key:
        raise ParameterError("--ca", None, "given with --certificate and --key")
    folder = _folder(options)
    policy, _ = folder.policy()
    with folder.ledger() as ledger:

        async def enrolled() -> str:
            credential = await enrol_device(
                ledger, policy, target=options.target, token=token, tls=tls
            )
            return credential.device_id.hex()

        device_id = anyio.run(enrolled)
    _say(
        options,
        {"device": device_id, "target": options.target},
        f"enrolled at {options.target} as device {device_id}",
    )
    return 0


def run_run(options: argparse.Namespace) -> int:
    """Run `demur device run`."""
    import os

    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # before numpy: what is forked has no threads
    from demur_client.device_folder import run_folder

    handler = logging.StreamHandler(sys.stderr)
    form = "%(asctime)s %(levelname)s %(message)s"
    handler.setFormatter(JsonLines() if options.json else logging.Formatter(form))
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING, handlers=[handler]
    )
    run_folder(_folder(options))
    return 0


def run_status(options: argparse.Namespace) -> int:
    """Run `demur device status`."""
    from demur_client import explain

    folder = _folder(options)
    policy, source = folder.policy()
    ledger = folder.look()
    identity = ledger.identity
    enrolled = identity.credential if identity else None
    fields = {
        "folder": str(folder.path),
        "opt_out": policy.opt_out,
        "features": sorted(source.features),
        "target": identity.target if identity else None,
        "device": enrolled.device_id.hex() if enrolled else None,
        "studies": [
            {
                **explain.study_fields(study),
                "rounds_reached": ledger.reached(study.hash),
                "reports_to_send": sum(not row.settled for row in ledger.history(study.hash)),
            }
            for study in ledger.studies()
        ],
        "doubt": ledger.doubt or None,
        "control_refusal": ledger.control_refusal or None,
    }
    _say(options, fields, explain.status_text(fields))
    return 0


def run_explain(options: argparse.Namespace) -> int:
    """Run `demur device explain`."""
    from demur_client import explain

    ledger = _folder(options).look()
    one = options.study is not None
    chosen = [_chosen(ledger, options.study)] if one else list(ledger.studies())
    if options.json:
        print(json.dumps([explain.explain_fields(ledger, study) for study in chosen]))
    elif chosen:
        print("\n\n".join(explain.explain_text(ledger, study) for study in chosen))
    else:
        print("it takes part in no study")
        if ledger.doubt:
            print(explain.doubt_text(ledger.doubt))
    return 0


def run_try(options: argparse.Namespace) -> int:
    """Run `demur device try`."""
    from demur_client.explain import feature_text, number_text
    from demur_proto.errors import DataError
    from demur_proto.queries import Feature

    feature = Feature(name=options.feature, parameters=_parameters(options))
    _, source = _folder(options).policy()
    try:
        value = source.open().evaluate(feature)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(f"{feature_text(feature)} is answered with cover: {text}") from error
    numbers = value.ravel().tolist()
    _say(
        options,
        {"feature": feature.name, "value": numbers},
        f"{feature_text(feature)} = {', '.join(map(number_text, numbers))}",
    )
    return 0


def run_forget(options: argparse.Namespace) -> int:
    """Run `demur device forget`."""
    with _folder(options).ledger() as ledger:
        study = None if options.all else _chosen(ledger, options.study)
        ledger.forget(study.hash if study else None)
    what = f"study {study.value.name!r}" if study else "every study and the collector"
    fields = {"forgot": study.hash.hex() if study else "all"}
    _say(options, fields, f"forgot {what}; what was left of the budget counts as spent")
    return 0


def run_unit(options: argparse.Namespace) -> int:
    """Run `demur device unit`."""
    import shutil
    from importlib.resources import files

    text = (files("demur_client") / "data" / "demur-device.service").read_text(encoding="utf-8")
    beside = shutil.which("demur", path=str(Path(sys.executable).parent))
    program = _quoted(beside) if beside else f"{_quoted(sys.executable)} -m demur_client.cli"
    folder, written = _quoted(str(options.folder.resolve())), _folder(options)
    counter = written.counter_path() if written.policy_path.exists() else None
    for word, value in {
        "@DEMUR@": program,
        "@WRITABLE@": folder if counter is None else f"{folder} {_quoted(str(counter.parent))}",
        "@FOLDER@": folder,
        "@USER@": _quoted(options.user),
    }.items():
        text = text.replace(word, value)
    print(text, end="")
    return 0


def _quoted(value: str) -> str:
    """A word as systemd reads it.

    >>> _quoted("100% mine")
    '"100%% mine"'
    """
    from demur_proto.checks import check_text

    check_text("unit", value, longest=4096)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if " " in escaped else escaped


def _folder(options: argparse.Namespace) -> "DeviceFolder":
    from demur_client.device_folder import DeviceFolder

    return DeviceFolder(options.folder)


def _chosen(ledger: "Ledger", digits: str) -> "Defined[Study]":
    """The one study whose hash begins with these digits."""
    from demur_proto.errors import NotFoundError

    found = [study for study in ledger.studies() if study.hash.hex().startswith(digits.lower())]
    if len(found) != 1 or not digits:  # an unset variable of a shell must choose nothing
        known = ", ".join(study.hash.hex()[:16] for study in ledger.studies()) or "none"
        raise NotFoundError(f"{len(found)} studies begin with {digits!r}; there are: {known}")
    return found[0]


def _parameters(options: argparse.Namespace) -> dict[str, float]:
    parameters = {}
    for word in options.parameters:
        name, _, number = word.partition("=")
        try:
            parameters[name] = float(number)
        except ValueError:
            options.usage_error(f"a parameter is NAME=NUMBER, got {word!r}")
    return parameters


def _say(options: argparse.Namespace, fields: Any, text: str) -> None:
    print(json.dumps(fields) if options.json else text)
