"""What an analyst asks about a model: it is published by its hash, and then a round names it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from demur_proto.asking import next_error_count, next_gradient
from demur_proto.calls import PEER, calling
from demur_proto.credentials import Metadata
from demur_proto.definition import Defined
from demur_proto.gradients import dimension_of
from demur_proto.models.definition import DefinedModel
from demur_proto.release import Release
from demur_proto.round import Round
from demur_proto.study import Study
from demur_server.analyst_calls import check_waiting
from demur_server.publishing import model_messages

if TYPE_CHECKING:
    from demur_proto.v1 import analyst_pb2_grpc

MODEL_S = 300.0  #: deadline of handing over a model


class ModelQuestions(ABC):
    """That part of an `Analyst`."""

    study: Defined[Study]
    _stub: "analyst_pb2_grpc.AnalystAsyncStub"
    _metadata: Metadata

    @abstractmethod
    async def _open(self, numbered: Callable[..., Round]) -> Defined[Round]:
        """Open the next round, made when its number is known, in the analyst's slot."""

    @abstractmethod
    async def _close(self, asked: Defined[Round], reports: int | None, timeout_s: float) -> Release:
        """Close a round, once it has its reports."""

    async def publish_model(self, model: DefinedModel) -> None:
        """Hand a model with its parameters to the collector, for rounds to name.

        The same again changes nothing. The collector forgets it when no open round names it any more,
        so each round needs it published before.

        Args:
            model: it becomes public.

        Raises:
            DemurError: the collector refuses it, or went away.
        """
        async with calling(PEER):
            await self._stub.PublishModel(
                model_messages(model), timeout=MODEL_S, metadata=self._metadata
            )

    async def open_gradient(self, model: DefinedModel, *, clip: float = 1.0) -> Defined[Round]:
        """Put a question to every device: the sum over people of the gradients of a model.

        Args:
            model: published before.
            clip: ℓ₂ radius of one person's gradient, data units.

        Raises:
            ParameterError: an argument is outside its range.
            NotFoundError: the collector does not keep the model.
            DemurError: the collector refuses the round, or went away.
        """
        return await self._open(
            partial(
                next_gradient,
                self.study,
                model.hash,
                dimension=dimension_of(model),
                clip=clip,
            )
        )

    async def open_error_count(
        self, model: DefinedModel, *, on_grid: bool = False
    ) -> Defined[Round]:
        """Put a question to every device: of its owner's examples, the share the model labels wrongly.

        Args:
            model: published before.
            on_grid: every possible share is a multiple of the study's grid step, as where nobody has
                more than one example. A device of which that is not true answers with cover.

        Raises:
            ParameterError: an argument is outside its range.
            NotFoundError: the collector does not keep the model.
            DemurError: the collector refuses the round, or went away.
        """
        return await self._open(
            partial(
                next_error_count,
                self.study,
                model.hash,
                parameters=dimension_of(model),
                on_grid=on_grid,
            )
        )

    async def ask_gradient(
        self,
        model: DefinedModel,
        *,
        clip: float = 1.0,
        reports: int | None = None,
        timeout_s: float = 60.0,
    ) -> Release:
        """Publish a model, ask for its gradients, and return the release with their noisy sum.

        The mean is `gradients.mean_gradient` of it: over the public cohort, never over those who
        contributed, whose number is secret.

        Args:
            model: it becomes public.
            clip: ℓ₂ radius of one person's gradient, data units.
            reports: how many to wait for; by default the study's minimum cohort.
            timeout_s: how long to wait for them, seconds.

        Raises:
            ParameterError: an argument is outside its range; nothing was asked.
            StateError: they did not come in time; the round stays open.
            DemurError: the collector refuses, or went away.
        """
        check_waiting(reports, timeout_s)
        await self.publish_model(model)
        asked = await self.open_gradient(model, clip=clip)
        return await self._close(asked, reports, timeout_s)

    async def ask_error_count(
        self,
        model: DefinedModel,
        *,
        on_grid: bool = False,
        reports: int | None = None,
        timeout_s: float = 60.0,
    ) -> Release:
        """Publish a model, and return the release with the number of people for whom it is wrong.

        Whoever has several examples counts by the share of them that the model labels wrongly.

        Args:
            model: it becomes public.
            on_grid: as in `open_error_count`.
            reports: how many to wait for; by default the study's minimum cohort.
            timeout_s: how long to wait for them, seconds.

        Raises:
            ParameterError: an argument is outside its range; nothing was asked.
            StateError: they did not come in time; the round stays open.
            DemurError: the collector refuses, or went away.
        """
        check_waiting(reports, timeout_s)
        await self.publish_model(model)
        asked = await self.open_error_count(model, on_grid=on_grid)
        return await self._close(asked, reports, timeout_s)
