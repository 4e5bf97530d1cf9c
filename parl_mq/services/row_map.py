"""The replay node's rows as a learner on its host sees them: mapped while it is attached, where that can be."""

from __future__ import annotations

import logging
from pathlib import Path

from parl_mq.config.models import RunConfig
from parl_mq.errors import ConfigError
from parl_mq.replay.mapped import MappedTable
from parl_mq.replay.refusals import NotMapped
from parl_mq.services.tables import ring_root, table_settings
from parl_mq.spec import TableSpec

log = logging.getLogger("parl_mq")


class RowMap:
    """Finds the ring among this process's own folders by its id; no path ever comes from a peer.

    Attributes:
        table: the mapped table; None while rows must come over the socket.
    """

    def __init__(self, config: RunConfig, spec: TableSpec, run_id: str) -> None:
        self.table: MappedTable | None = None
        self._config = config
        self._spec = spec
        self._run_id = run_id

    def attach(self, ring_id: str) -> None:
        """Maps the ring of this id anew, at each attachment: the replay node may have been started again.

        Raises:
            ConfigError: it cannot be mapped, and `learner.mapped` is `on`.
        """
        self.detach()
        if self._config.learner.mapped == "off":
            return
        try:
            self.table = self._find(ring_id)
        except NotMapped as error:
            if self._config.learner.mapped == "on":
                raise ConfigError(
                    f"learner.mapped = on, and the replay node's ring cannot be mapped: {error}; start the learner on "
                    "the replay node's host, as its user and with its node.ring_directory, or set learner.mapped = auto"
                ) from error
            log.info("rows come over the socket: %s", error)
        else:
            log.info("rows are read from the replay node's memory")

    def detach(self) -> None:
        """Lets go of the ring: its owner may be gone, and have removed it."""
        if self.table is not None:
            self.table.close()
            self.table = None

    def _find(self, ring_id: str) -> MappedTable:
        settings = table_settings(self._config)
        reasons = []
        for directory in self._directories():
            try:
                return MappedTable(settings, self._spec, directory=directory, ring_id=ring_id)
            except NotMapped as error:
                reasons.append(str(error))
        raise NotMapped("; ".join(reasons))

    def _directories(self) -> list[Path]:
        """The folders of this run's rings; their names are compared, so that a run id can lead nowhere else."""
        try:
            root = ring_root(self._config.node)
            found = [path for path in sorted(root.iterdir()) if path.name.startswith(f"{self._run_id}-")]
        except (ConfigError, OSError) as error:
            raise NotMapped(f"there is no folder of rings here: {error}") from error
        if not found:
            raise NotMapped(f"no ring of run {self._run_id} lies in {root}")
        return found
