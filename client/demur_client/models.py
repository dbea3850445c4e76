"""Models that rounds name: fetched once, checked, and kept for the rounds to come.

A model is public. It is fetched before any data is looked at and whatever a device has spent, so that
fetching shows nothing.
"""

from typing import final

import grpc

from demur_proto.checks import check_integer
from demur_proto.errors import ConnectionLost, NotFoundError, WireError
from demur_proto.models.definition import MODEL_TAG, DefinedModel, read_model
from demur_proto.models.gradients import model_of
from demur_proto.queries import ModelQuery
from demur_proto.transport.calls import PEER, calling
from demur_proto.transport.credentials import Credential, metadata_of
from demur_proto.v1 import collector_pb2, collector_pb2_grpc
from demur_proto.wire.definition import PROTOCOL_VERSION
from demur_proto.wire.frames import Pieces, largest_definition
from demur_proto.wire.hmacs import hash_definition

FETCH_S = 300.0  #: deadline of fetching a model
KEPT = 2  #: models that a device keeps: this round's and the last one's


async def fetch_model(
    channel: grpc.aio.Channel, query: ModelQuery, *, credential: Credential | None = None
) -> DefinedModel:
    """The model that a round names, checked against its hash and the number of its parameters.

    No more bytes are taken than a model with that many parameters needs.

    Args:
        channel: to the collector.
        query: what a round asks.
        credential: a device's or gateway's; None where the collector takes reports from anybody.

    Raises:
        AccessError: the credential was refused.
        NotFoundError: the collector does not keep it: no open round names it any more.
        ConnectionLost: the collector went away.
        WireError, UnsupportedError: it sent something else, or what this version does not do.
    """
    call = collector_pb2_grpc.CollectorStub(channel).GetModel(
        collector_pb2.GetModelRequest(
            protocol_version=PROTOCOL_VERSION, model_hash=query.model_hash
        ),
        timeout=FETCH_S,
        metadata=metadata_of(credential),
    )
    pieces = Pieces(most_bytes=largest_definition(query.parameters))
    try:
        async with calling(PEER):
            async for response in call:
                pieces.add(response.piece)
    finally:
        call.cancel()
    definition = pieces.whole()
    if hash_definition(MODEL_TAG, definition) != query.model_hash:
        raise WireError(f"{PEER} sent another model than the one that the round names")
    model = read_model(definition)
    query.check_model(model)
    return model


@final
class ModelCache:
    """The models of the last rounds. Those who visit one after the other may share it.

    Args:
        most: how many it keeps; >= 1.

    Raises:
        ParameterError: it keeps none.
    """

    def __init__(self, *, most: int = KEPT) -> None:
        check_integer("most", most, 1)
        self._most = most
        self._models: dict[bytes, DefinedModel] = {}  # the one used last comes last

    async def of(
        self, channel: grpc.aio.Channel, query: ModelQuery, *, credential: Credential | None = None
    ) -> DefinedModel:
        """The model that a round names; it is fetched unless it was among the last ones.

        Raises:
            ConnectionLost: the collector went away, or forgot the model, as it does when the round has
                closed meanwhile.
            DemurError: as `fetch_model`.
        """
        model = self._models.pop(query.model_hash, None)
        if model is None:
            try:
                model = await fetch_model(channel, query, credential=credential)
            except NotFoundError as error:
                raise ConnectionLost(f"the round closed before its model came: {error}") from None
        query.check_model(model)
        model_of(model.value)
        self._models[query.model_hash] = model
        while len(self._models) > self._most:
            del self._models[next(iter(self._models))]
        return model
