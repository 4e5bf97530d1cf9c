"""One version of the policy's weights as bytes, for those that hand it on without looking inside; torch-free."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from parl_mq.errors import SnapshotError
from parl_mq.spec import WeightsVersion


@dataclass(frozen=True, slots=True)
class WeightsSnapshot:
    """A version of the weights.

    Attributes:
        version: which one.
        updates: learner updates in it.
        payload: safetensors; parl_mq.model.weights.unpack reads it.
        digest: SHA-256 of the payload, 64 hex digits.
    """

    version: WeightsVersion
    updates: int
    payload: bytes
    digest: str

    @classmethod
    def of(cls, version: WeightsVersion, updates: int, payload: bytes) -> WeightsSnapshot:
        """A snapshot with the digest of its payload."""
        return cls(version, updates, payload, digest_of(payload))

    def verify(self) -> None:
        """Compares the payload with the digest.

        Raises:
            SnapshotError: they do not belong together.
        """
        found = digest_of(self.payload)
        if found != self.digest:
            raise SnapshotError(f"weights {self.version}: digest is {found}, expected {self.digest}: bytes are damaged")


def digest_of(payload: bytes) -> str:
    """SHA-256, 64 hex digits."""
    return hashlib.sha256(payload).hexdigest()
