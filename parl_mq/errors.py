"""The error tree: what went wrong, and the exit code a process ends with because of it."""

from __future__ import annotations

from typing import ClassVar, Final, Self

EXIT_OK: Final = 0
EXIT_USAGE: Final = 2
EXIT_UNAVAILABLE: Final = 69
EXIT_INTERNAL: Final = 70
EXIT_DISK: Final = 74
EXIT_TEMPORARY: Final = 75
EXIT_NOT_ALLOWED: Final = 77
EXIT_CONFIG: Final = 78
EXIT_INTERRUPTED: Final = 130


class ParlError(Exception):
    """Base of every error that parl_mq raises on purpose.

    Attributes:
        keys: settings that together are at fault, `section.key` each; whoever knows where they were said can add that.
    """

    exit_code: ClassVar[int] = EXIT_INTERNAL
    keys: tuple[str, ...] = ()

    def about(self, *keys: str) -> Self:
        """This error, with the settings that are at fault."""
        self.keys = keys
        return self


class ConfigError(ParlError):
    """A setting from a file or the environment is unknown, of the wrong type, or impossible."""

    exit_code = EXIT_CONFIG


class UsageError(ConfigError):
    """The same fault in a command-line argument."""

    exit_code = EXIT_USAGE


class EnvironmentFault(ParlError):
    """A gymnasium environment cannot be made or broke its contract."""

    exit_code = EXIT_CONFIG


class MemoryRefused(ParlError):
    """A table would not fit in memory; the message shows the sum."""

    exit_code = EXIT_CONFIG


class RingRefused(ParlError):
    """A ring that was found cannot be gone on with; the message names the file, what is wrong in it, and what to do."""

    exit_code = EXIT_CONFIG


class WireError(ParlError):
    """Bytes from a peer do not make a valid message."""


class ChannelClosed(ParlError):
    """The channel was closed while something waited on it."""

    exit_code = EXIT_TEMPORARY


class PeerTimeout(ParlError):
    """A peer did not answer within the time that was given."""

    exit_code = EXIT_UNAVAILABLE


class GroupBroken(ParlError):
    """A group of learners has lost one of them: those that are left meet again in a new one."""

    exit_code = EXIT_TEMPORARY


class CodedError(ParlError):
    """An error that brings its own exit code along.

    Attributes:
        code: exit code of the process that ends because of it.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Refused(CodedError):
    """A peer refused this node and said why."""


class SnapshotError(ParlError):
    """A checkpoint or snapshot is damaged, foreign or incomplete."""

    exit_code = EXIT_CONFIG


class RecordError(ParlError):
    """A run directory is missing, foreign or damaged, or cannot be written."""

    exit_code = EXIT_CONFIG


class DiskError(RecordError):
    """A file cannot be written because its disk is full, read-only or broken: no fault of what was asked for."""

    exit_code = EXIT_DISK


class NodeFailed(CodedError):
    """A node of the run ended without being asked to."""


def exit_code_of(error: BaseException) -> int:
    """The process exit code that `error` stands for."""
    if isinstance(error, CodedError):
        return error.code
    if isinstance(error, ParlError):
        return error.exit_code
    return EXIT_INTERNAL
