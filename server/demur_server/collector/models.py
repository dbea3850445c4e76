"""The models that rounds name, as a running collector holds them."""

import hmac
from collections.abc import AsyncIterator

import anyio

from demur_proto.errors import WireError
from demur_proto.models.definition import LARGEST_MODEL_BYTES, MODEL_TAG, DefinedModel, read_model
from demur_proto.queries import ModelQuery
from demur_proto.v1 import analyst_pb2
from demur_proto.wire.definition import PROTOCOL_VERSION, check_version
from demur_proto.wire.frames import Pieces, pieces_of
from demur_proto.wire.hmacs import hash_definition
from demur_server.store.base import Store, no_model

HELD = 4  #: models that are at hand without a look into the store


class Models:
    """Keeps models, and hands them out to any number of devices at once.

    Args:
        store: what must not be forgotten.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[bytes, bytes] = {}  # the last ones that were asked for, by hash
        self._fetching = anyio.Lock()  # or every device would read the store

    async def publish(self, model_hash: bytes, definition: bytes) -> None:
        """Keep a model; the same again changes nothing.

        Raises:
            WireError: the hash is another one.
            WireError, UnsupportedError: the bytes define no model that this version does.
        """
        found = await anyio.to_thread.run_sync(hash_definition, MODEL_TAG, definition)
        if not hmac.compare_digest(found, model_hash):
            raise WireError(
                f"the model that came is {found.hex()[:16]}, not {model_hash.hex()[:16]}"
            )
        await anyio.to_thread.run_sync(read_model, definition)
        await self._store.add_model(model_hash, definition)

    async def is_kept(self, model_hash: bytes) -> bool:
        """Whether the store has it, whatever is at hand here: others may have made it forget."""
        return await self._store.model(model_hash) is not None

    async def find(self, model_hash: bytes) -> bytes | None:
        """The definition of a model; None: it is not kept."""
        if model_hash in self._held:
            return self._held[model_hash]
        async with self._fetching:
            if model_hash not in self._held:
                definition = await self._store.model(model_hash)
                if definition is None:
                    return None
                while len(self._held) >= HELD:
                    del self._held[next(iter(self._held))]
                self._held[model_hash] = definition
        return self._held[model_hash]

    async def definition(self, model_hash: bytes) -> bytes:
        """The definition of a model.

        Raises:
            NotFoundError: it is not kept.
        """
        definition = await self.find(model_hash)
        if definition is None:
            raise no_model(model_hash)
        return definition

    async def check(self, query: ModelQuery) -> None:
        """Refuse a question about a model that is not kept, or that has another size.

        Raises:
            NotFoundError: it is not kept.
            WireError: it has another number of parameters than the round says.
        """
        definition = await self.definition(query.model_hash)
        model = await anyio.to_thread.run_sync(read_model, definition)
        query.check_model(model)

    def let_go(self, query: ModelQuery) -> None:
        """A round about this model has closed."""
        self._held.pop(query.model_hash, None)


# A model on its way to a collector, and its arrival there.

Messages = AsyncIterator[analyst_pb2.PublishModelRequest]


async def model_messages(model: DefinedModel) -> Messages:
    """The header of a model, then its pieces."""
    header = analyst_pb2.ModelHeader(
        protocol_version=PROTOCOL_VERSION, model_hash=model.hash, size=len(model.definition)
    )
    yield analyst_pb2.PublishModelRequest(header=header)
    for piece in pieces_of(model.definition):
        yield analyst_pb2.PublishModelRequest(piece=piece)


async def read_header(messages: Messages) -> analyst_pb2.ModelHeader:
    """What is to come.

    Raises:
        WireError: something else came first, or the model is larger than any may be.
        VersionError: the sender speaks another protocol version.
    """
    first = await anext(messages, None)
    if first is None or first.WhichOneof("message") != "header":
        raise WireError("the first message about a model is its header")
    check_version(first.header.protocol_version)
    if not 1 <= first.header.size <= LARGEST_MODEL_BYTES:
        raise WireError(
            f"a model takes 1 to {LARGEST_MODEL_BYTES} bytes, and this one {first.header.size}"
        )
    return first.header


async def read_pieces(messages: Messages, header: analyst_pb2.ModelHeader) -> bytes:
    """The definition that the header announces; its hash is not looked at.

    Raises:
        WireError: something else came, or not as many bytes.
    """
    pieces = Pieces(most_bytes=header.size)
    async for message in messages:
        if message.WhichOneof("message") != "piece":
            raise WireError("after its header a model comes in pieces, and nothing else")
        pieces.add(message.piece)
    if pieces.size != header.size:
        raise WireError(f"{pieces.size} of {header.size} bytes of a model came")
    return pieces.whole()
