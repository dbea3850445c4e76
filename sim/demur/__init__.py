"""Local differential privacy in which the accounting lives with the person.

    import demur

    result = demur.simulate("cdnow", epsilon=0.5)
    demur.save(result, "runs/mine")

All that a person uses is here; what is not is private. Nothing is imported before it is used.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demur.front import (
        open_session as open_session,
    )
    from demur.front import (
        plan as plan,
    )
    from demur.front import (
        save as save,
    )
    from demur.front import (
        simulate as simulate,
    )
    from demur.front import (
        train as train,
    )
    from demur_client.agent import Agent as Agent
    from demur_client.device import Device as Device
    from demur_client.enrolment import enrol_device as enrol_device
    from demur_client.ledger.base import Ledger as Ledger
    from demur_client.ledger.file import LedgerFile as LedgerFile
    from demur_client.policy import OwnerPolicy as OwnerPolicy
    from demur_client.sources.base import FunctionSource as FunctionSource
    from demur_client.sources.folder import FolderSource as FolderSource
    from demur_client.sources.sql import TableSource as TableSource
    from demur_proto.errors import (
        AccessError as AccessError,
    )
    from demur_proto.errors import (
        ConnectionLost as ConnectionLost,
    )
    from demur_proto.errors import (
        DataError as DataError,
    )
    from demur_proto.errors import (
        DemurError as DemurError,
    )
    from demur_proto.errors import (
        NotFoundError as NotFoundError,
    )
    from demur_proto.errors import (
        ParameterError as ParameterError,
    )
    from demur_proto.errors import (
        PolicyError as PolicyError,
    )
    from demur_proto.errors import (
        StateError as StateError,
    )
    from demur_proto.errors import (
        StorageError as StorageError,
    )
    from demur_proto.errors import (
        UnsupportedError as UnsupportedError,
    )
    from demur_proto.mechanisms.registry import Randomiser as Randomiser
    from demur_proto.queries import (
        ErrorCount as ErrorCount,
    )
    from demur_proto.queries import (
        Feature as Feature,
    )
    from demur_proto.queries import (
        Gradient as Gradient,
    )
    from demur_proto.queries import (
        HaltCount as HaltCount,
    )
    from demur_proto.queries import (
        Histogram as Histogram,
    )
    from demur_proto.queries import (
        Linear as Linear,
    )
    from demur_proto.queries import (
        RunningCount as RunningCount,
    )
    from demur_proto.queries import (
        Weights as Weights,
    )
    from demur_proto.release import Release as Release
    from demur_proto.running.segments import Segment as Segment
    from demur_proto.study import (
        Measure as Measure,
    )
    from demur_proto.study import (
        Policy as Policy,
    )
    from demur_proto.study import (
        Purpose as Purpose,
    )
    from demur_proto.study import (
        Study as Study,
    )
    from demur_proto.study import (
        View as View,
    )
    from demur_proto.study import (
        design_study as design_study,
    )
    from demur_server.analyst import Analyst as Analyst
    from demur_server.blocking import BlockingAnalyst as BlockingAnalyst
    from demur_server.collector.collector import Collector as Collector
    from demur_server.config import ServerConfig as ServerConfig
    from demur_server.serve import serve as serve
    from demur_sim.engine.session import (
        Fidelity as Fidelity,
    )
    from demur_sim.engine.session import (
        Session as Session,
    )
    from demur_sim.people.populations import ArrayPopulation as ArrayPopulation
    from demur_sim.scenario import (
        Data as Data,
    )
    from demur_sim.scenario import (
        Scenario as Scenario,
    )
    from demur_sim.scenario import (
        list_scenarios as list_scenarios,
    )
    from demur_sim.scenario import (
        load_scenario as load_scenario,
    )
    from demur_sim.training.scenario import (
        TrainingScenario as TrainingScenario,
    )
    from demur_sim.training.scenario import (
        load_training as load_training,
    )

HOMES = {
    **dict.fromkeys(("open_session", "plan", "save", "simulate", "train"), "demur.front"),
    "Agent": "demur_client.agent",
    "Device": "demur_client.device",
    "enrol_device": "demur_client.enrolment",
    "Ledger": "demur_client.ledger.base",
    "LedgerFile": "demur_client.ledger.file",
    "OwnerPolicy": "demur_client.policy",
    "FunctionSource": "demur_client.sources.base",
    "FolderSource": "demur_client.sources.folder",
    "TableSource": "demur_client.sources.sql",
    **dict.fromkeys(
        (
            *("AccessError", "ConnectionLost", "DataError", "DemurError", "NotFoundError"),
            *("ParameterError", "PolicyError", "StateError", "StorageError", "UnsupportedError"),
        ),
        "demur_proto.errors",
    ),
    "Randomiser": "demur_proto.mechanisms.registry",
    **dict.fromkeys(
        (
            *("ErrorCount", "Feature", "Gradient", "HaltCount", "Histogram", "Linear"),
            *("RunningCount", "Weights"),
        ),
        "demur_proto.queries",
    ),
    "Release": "demur_proto.release",
    "Segment": "demur_proto.running.segments",
    **dict.fromkeys(
        ("Measure", "Policy", "Purpose", "Study", "View", "design_study"), "demur_proto.study"
    ),
    "Analyst": "demur_server.analyst",
    "BlockingAnalyst": "demur_server.blocking",
    "Collector": "demur_server.collector.collector",
    "ServerConfig": "demur_server.config",
    "serve": "demur_server.serve",
    "Fidelity": "demur_sim.engine.session",
    "Session": "demur_sim.engine.session",
    "ArrayPopulation": "demur_sim.people.populations",
    **dict.fromkeys(("Data", "Scenario", "list_scenarios", "load_scenario"), "demur_sim.scenario"),
    **dict.fromkeys(("TrainingScenario", "load_training"), "demur_sim.training.scenario"),
}
"""Where each name lives."""
EXTRAS = {"demur_server": "server", "demur_sim": "sim", "demur": "sim"}  #: that a package needs

__version__ = version("demur")
__all__ = sorted(HOMES)  # noqa: PLE0605 - a snapshot test names them


def __getattr__(name: str) -> Any:
    """A public name, imported now.

    Raises:
        AttributeError: there is none; the nearest one is named.
        ModuleNotFoundError: an extra is missing; how to install it is said.
    """
    if name not in HOMES:
        import difflib

        nearest = difflib.get_close_matches(name, HOMES, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise AttributeError(f"module 'demur' has no attribute {name!r}{hint}")
    home = HOMES[name]
    try:
        value = getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(home.partition(".")[0])
        if extra is None or str(error.name).startswith("demur"):
            raise
        message = f"demur.{name} needs {error.name}; install it with: pip install 'demur[{extra}]'"
        raise ModuleNotFoundError(message, name=error.name) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What is public."""
    return [*__all__, "__version__"]
