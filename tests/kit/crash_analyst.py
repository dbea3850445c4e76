"""An analyst whose collectors come and go, and some of whose answers are lost."""

from dataclasses import dataclass
from typing import Any

import anyio
import numpy as np

from crash_keeper import Keeper
from crash_line import AGAIN_S, CALL_S
from demur_proto.errors import ConnectionLost, NotFoundError, StateError
from demur_proto.transport.calls import PEER, calling
from demur_proto.transport.credentials import NamedSecret, metadata_of
from demur_proto.v1 import analyst_pb2

SERVICE = "/demur_proto.v1.Analyst/"
LOST = 0.2  #: how likely the analyst does not wait for an answer
PATIENCE_S = 0.01  #: and for how long at most


@dataclass(slots=True, repr=False, eq=False)
class Asking:
    """Calls that are made until there is an answer."""

    keepers: list[Keeper]
    rng: np.random.Generator
    credential: NamedSecret

    async def ask(self, method: str, *, shard: int | None = None, **fields: Any) -> bytes:
        """The bytes of the answer to a call.

        Args:
            method: of the analysts' service.
            shard: which collector to ask; None: any.
            fields: of the request.
        """
        request = getattr(analyst_pb2, f"{method}Request")(**fields).SerializeToString()
        while True:
            chosen = int(self.rng.integers(len(self.keepers))) if shard is None else shard
            patience_s = self.rng.uniform(0, PATIENCE_S) if self.rng.random() < LOST else CALL_S
            life = await self.keepers[chosen].life()
            call: Any = life.analysts.unary_unary(SERVICE + method)
            try:
                async with calling(PEER):
                    with anyio.move_on_after(patience_s):
                        answer: bytes = await call(
                            request, timeout=CALL_S, metadata=metadata_of(self.credential)
                        )
                        return answer
            except ConnectionLost:
                pass
            except (NotFoundError, StateError) as error:
                # A collector learns a little later what another has opened.
                behind = isinstance(error, NotFoundError) or "the next number is" in str(error)
                if len(self.keepers) == 1 or not behind:
                    raise
            await anyio.sleep(AGAIN_S)
