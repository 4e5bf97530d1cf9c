"""Writes pictures to a film: .gif by Pillow, .mp4 by the ffmpeg that imageio-ffmpeg brings along."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt

from parl_mq.errors import RecordError, UsageError
from parl_mq.extras import install_command

if TYPE_CHECKING:
    from PIL.Image import Image

GIF_MAX_FPS: Final = 25.0
"""Viewers slow down films whose pictures stand shorter than a few hundredths of a second."""
GIF_MAX_SIDE: Final = 400
"""Pixels of the longer side; larger ones make films of tens of megabytes."""
GIF_COLORS: Final = 128
GIF_PAUSE_MS: Final = 1_000

Picture = npt.NDArray[np.uint8]


def check_film(path: Path) -> None:
    """Whether a film of this name can be written here, before anybody plays for it.

    Raises:
        UsageError: the name has another ending than .gif and .mp4, its folder is missing, or the package for it is.
    """
    if path.suffix.lower() not in (".gif", ".mp4"):
        raise UsageError(f"{path}: a film's name must end in .gif or .mp4")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    if path.suffix.lower() == ".mp4" and find_spec("imageio_ffmpeg") is None:
        raise UsageError(
            f"{path}: .mp4 needs the package imageio-ffmpeg ({install_command('video')}); .gif needs nothing more"
        )


class Film(AbstractContextManager["Film"]):
    """A file that appears when its block ends without an error.

    Args:
        path: its ending says how it is written.
        fps: pictures a second.

    Attributes:
        num_pictures: taken so far.

    Raises:
        UsageError: as `check_film`.
    """

    def __init__(self, path: Path, fps: float) -> None:
        check_film(path)
        self.num_pictures = 0
        self._path = path
        self._unfinished = path.with_name(f".unfinished-{path.name}")
        self._encoder: _Encoder = (_Gif if path.suffix.lower() == ".gif" else _Mp4)(self._unfinished, fps)

    def __call__(self, picture: Picture) -> None:
        """Takes the next picture, [height, width, 3], which must stay as it is; all of a film have one size.

        Raises:
            RecordError: the film cannot be written.
        """
        with self._os_errors_named():
            self._encoder.add(picture)
        self.num_pictures += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the film; without pictures, or after an error, there is none."""
        try:
            with self._os_errors_named():
                self._encoder.close()
                if error is None and self.num_pictures:
                    self._unfinished.replace(self._path)
        finally:
            self._unfinished.unlink(missing_ok=True)

    @contextmanager
    def _os_errors_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise RecordError(f"{self._path} cannot be written: {exc}") from exc


class _Encoder(Protocol):
    """Turns pictures into a file; OSError where it cannot."""

    def add(self, picture: Picture) -> None: ...

    def close(self) -> None: ...


class _Gif:
    """Holds all pictures, made small, until the end: Pillow wants them at once."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path = path
        self._every = ceil(fps / GIF_MAX_FPS)
        self._duration_ms = round(1000 * self._every / fps)
        self._kept: list[Image] = []
        self._num_skipped = 0
        self._skipped: Picture | None = None

    def add(self, picture: Picture) -> None:
        """Keeps one of so many."""
        if self._num_skipped:
            self._num_skipped -= 1
            self._skipped = picture
            return
        self._keep(picture)
        self._num_skipped = self._every - 1

    def close(self) -> None:
        """Writes the film; its last picture, which shows how it ended, stands still for a while."""
        if self._skipped is not None:
            self._keep(self._skipped)
        if self._kept:
            first, *others = self._kept
            durations = [self._duration_ms] * len(others) + [GIF_PAUSE_MS]
            first.save(self._path, "GIF", save_all=True, append_images=others, duration=durations, loop=0)
            self._kept.clear()

    def _keep(self, picture: Picture) -> None:
        from PIL import Image

        image = Image.fromarray(picture)
        image.thumbnail((GIF_MAX_SIDE, GIF_MAX_SIDE))
        self._kept.append(image.quantize(GIF_COLORS, dither=Image.Dither.NONE))
        self._skipped = None


class _Mp4:
    """Passes each picture on to a process of ffmpeg, which starts with the first."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path = path
        self._fps = fps
        self._pipe: Generator[None, bytes | None, None] | None = None

    def add(self, picture: Picture) -> None:
        """Waits where ffmpeg is slower."""
        if self._pipe is None:
            from imageio_ffmpeg import write_frames

            height, width, _ = picture.shape
            # Players want even sides; the default of 16 would stretch the picture.
            self._pipe = write_frames(str(self._path), (width, height), fps=self._fps, macro_block_size=2)
            self._pipe.send(None)
        self._pipe.send(np.ascontiguousarray(picture).tobytes())

    def close(self) -> None:
        """Waits until ffmpeg has ended."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
