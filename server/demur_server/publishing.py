"""A model on its way to a collector, and its arrival there."""

from collections.abc import AsyncIterator

from demur_proto.errors import WireError
from demur_proto.model_pieces import Pieces, pieces_of
from demur_proto.models.definition import LARGEST_MODEL_BYTES, DefinedModel
from demur_proto.v1 import analyst_pb2
from demur_proto.version import PROTOCOL_VERSION, check_version

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
