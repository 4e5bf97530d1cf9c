"""Films, read back."""

import importlib.util
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from parl_mq.errors import RecordError, UsageError
from parl_mq.observe import film
from parl_mq.observe.film import GIF_MAX_SIDE, GIF_PAUSE_MS, Film, check_film


def _picture(brightness: int, height: int = 40, width: int = 61) -> np.ndarray:
    return np.full((height, width, 3), brightness, np.uint8)


def _frames(path: Path) -> list[tuple[int, int]]:
    """(brightness, milliseconds) of each picture of a gif."""
    with Image.open(path) as gif:
        shown = []
        for index in range(gif.n_frames):
            gif.seek(index)
            shown.append((gif.convert("L").getpixel((3, 3)), gif.info["duration"]))
        return shown


def test_gif_holds_every_picture_and_rests_on_the_last(tmp_path: Path) -> None:
    path = tmp_path / "play.gif"
    with Film(path, fps=10) as camera:
        for brightness in (0, 60, 120, 180):
            camera(_picture(brightness))
    assert _frames(path) == [(0, 100), (60, 100), (120, 100), (180, GIF_PAUSE_MS)]
    assert list(tmp_path.iterdir()) == [path]


def test_fast_gif_leaves_out_pictures_but_the_last(tmp_path: Path) -> None:
    with Film(tmp_path / "play.gif", fps=50) as camera:
        for brightness in (0, 50, 100, 150):
            camera(_picture(brightness))
    assert _frames(tmp_path / "play.gif") == [(0, 40), (100, 40), (150, GIF_PAUSE_MS)]


def test_large_pictures_become_small_gifs(tmp_path: Path) -> None:
    with Film(tmp_path / "play.gif", fps=10) as camera:
        camera(_picture(9, 600, 1_200))
    with Image.open(tmp_path / "play.gif") as gif:
        assert gif.size == (GIF_MAX_SIDE, GIF_MAX_SIDE // 2)


def test_mp4_holds_every_picture(tmp_path: Path) -> None:
    path = tmp_path / "play.mp4"
    with Film(path, fps=25) as camera:
        for brightness in range(0, 250, 10):
            camera(_picture(brightness, 64, 96))
    num_frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
    assert (num_frames, seconds) == (25, 1.0)
    reader = imageio_ffmpeg.read_frames(str(path))
    assert next(reader)["source_size"] == (96, 64)
    reader.close()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["play.gif", "play.mp4"])
def test_failed_film_leaves_the_old_one(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("old")

    def play() -> None:
        with Film(path, fps=10) as camera:
            camera(_picture(1))
            raise KeyError

    with pytest.raises(KeyError):
        play()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_film_without_pictures_is_none(tmp_path: Path) -> None:
    with Film(tmp_path / "play.gif", fps=10) as camera:
        pass
    assert camera.num_pictures == 0
    assert list(tmp_path.iterdir()) == []


def test_film_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "play.gif").mkdir()

    def play() -> None:
        with Film(tmp_path / "play.gif", fps=10) as camera:
            camera(_picture(1))

    with pytest.raises(RecordError, match=r"play\.gif cannot be written"):
        play()


@pytest.mark.parametrize(
    ("name", "told"), [("play.avi", r"must end in \.gif or \.mp4"), ("play", r"\.gif"), ("no/play.gif", "no folder")]
)
def test_impossible_film_is_refused_beforehand(tmp_path: Path, name: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        check_film(tmp_path / name)


def test_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(film, "find_spec", lambda name: None if name == "imageio_ffmpeg" else find_spec(name))
    with pytest.raises(UsageError, match=r"pip install .*\[video\]'?"):
        check_film(tmp_path / "play.mp4")
    check_film(tmp_path / "play.gif")
