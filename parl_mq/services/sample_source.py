"""Where a learner's batches come from: one replay node, or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from parl_mq.config.models import RunConfig
from parl_mq.net.channel import ClientChannel
from parl_mq.services.row_map import RowMap
from parl_mq.services.sample_client import Batch, SampleClient
from parl_mq.services.spread_client import SpreadClient
from parl_mq.spec import TableSpec
from parl_mq.wire.messages import Attach


class SampleSource(Protocol):
    """What a learner needs of its end of the data plane; see SampleClient."""

    @property
    def waiting_for(self) -> str: ...  # noqa: D102 - as SampleClient has them

    @property
    def num_torn(self) -> int: ...  # noqa: D102

    @property
    def num_reconnects(self) -> int: ...  # noqa: D102

    async def run(self) -> None: ...  # noqa: D102

    async def next_batch(self) -> Batch: ...  # noqa: D102

    def ready_batches(self) -> list[Batch]: ...  # noqa: D102

    def give_back(self, batch: Batch, magnitudes: npt.NDArray[np.float64]) -> None: ...  # noqa: D102

    def ask(self) -> None: ...  # noqa: D102

    def send_last_priorities(self) -> None: ...  # noqa: D102


def sample_source(
    channels: Sequence[ClientChannel], attach: Attach, config: RunConfig, spec: TableSpec
) -> SampleSource:
    """The client of the run's replay nodes.

    Args:
        channels: to each of them, by index.
        attach: the first message to each.
        config: of the run.
        spec: of its table.
    """
    row_maps = [RowMap(config, spec, attach.run_id) for _ in channels]
    if len(channels) > 1:
        return SpreadClient(channels, attach, config, spec, row_maps=row_maps)
    return SampleClient(
        channels[0],
        attach,
        batch_size=config.learner_batch_size,
        prefetch=config.prefetch,
        row_map=row_maps[0],
    )
