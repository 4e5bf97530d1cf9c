"""A vector whose environments step at the same time, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, cast

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate

AnyEnv = gymnasium.Env[Any, Any]

_Work = Callable[[], Any]


class ThreadVectorEnv(SyncVectorEnv):
    """Gives the same steps as a SyncVectorEnv with SAME_STEP resets, but waits for all environments at once.

    For environments that spend their steps waiting: robots, simulators behind a socket, code that lets go of the
    interpreter's lock. One vector step takes as long as its slowest environment, resets included. Environments that
    compute in Python gain nothing, as they share that lock.

    Each environment is made in the caller's thread, and from then on used in its own thread alone. What an environment
    raises comes out of `step` or `reset`, the one with the lowest index first; none is in the middle of a step then.

    Args:
        makers: of the environments.
    """

    def __init__(self, makers: Sequence[Callable[[], AnyEnv]]) -> None:
        super().__init__(
            [lambda make=make: _EnvInThread(make()) for make in makers],  # type: ignore[misc]
            copy=False,
            autoreset_mode=AutoresetMode.SAME_STEP,
        )
        self._in_threads = cast(list[_EnvInThread], self.envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all environments at once; with a mask among the options, those in turn."""
        if not options:
            seeds = [seed + index for index in range(self.num_envs)] if isinstance(seed, int) else seed
            for env, own_seed in zip(self._in_threads, seeds or [None] * self.num_envs, strict=True):
                env.begin_reset(own_seed)
            self._wait()
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all environments at once, and resets those that end with it."""
        for env, action in zip(self._in_threads, iterate(self.action_space, actions), strict=True):
            env.begin_step(action)
        self._wait()
        return super().step(actions)

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the environments, each in its thread, and ends the threads."""
        for env in self._in_threads:
            env.begin_close()
        for env in self._in_threads:
            env.close()

    def _wait(self) -> None:
        for env in self._in_threads:
            env.wait()


class _EnvInThread(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment and its thread; what was begun is what the next call of that name gives."""

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self._works: SimpleQueue[_Work | None] = SimpleQueue()
        self._is_idle = threading.Lock()
        self._stepped: Any = None
        self._first: Any = None
        self._fault: BaseException | None = None
        self._thread: threading.Thread | None = None

    def begin_step(self, action: Any) -> None:
        self._begin(lambda: self._step(action))

    def begin_reset(self, seed: int | None, options: dict[str, Any] | None = None) -> None:
        self._begin(lambda: self._reset(seed, options))

    def begin_close(self) -> None:
        self._begin(self.env.close)
        self._works.put(None)

    def wait(self) -> None:
        """Until nothing is under way."""
        with self._is_idle:
            pass

    def step(self, action: Any) -> Any:
        """What the step that was begun came to."""
        del action
        self._raise()
        return self._stepped

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The first observation of the episode that was begun; where none was, one is begun now."""
        if self._first is None and self._fault is None:
            self.begin_reset(seed, options)
            self.wait()
        self._raise()
        first, self._first = self._first, None
        return first

    def close(self) -> None:
        """Waits for the end of the thread."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise()

    def _begin(self, work: _Work) -> None:
        """Hands work to the thread; what an earlier one came to and nobody asked for is forgotten."""
        self._is_idle.acquire()
        self._first = self._fault = None
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="environment", daemon=True)
            self._thread.start()
        self._works.put(work)

    def _serve(self) -> None:
        while (work := self._works.get()) is not None:
            try:
                work()
            except BaseException as fault:  # it belongs to whoever asks for the outcome
                self._fault = fault
            finally:
                self._is_idle.release()

    def _step(self, action: Any) -> None:
        self._stepped = self.env.step(action)
        _, _, terminated, truncated, _ = self._stepped
        if terminated or truncated:
            self._first = self.env.reset()

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> None:
        self._first = self.env.reset(seed=seed, options=options)

    def _raise(self) -> None:
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault
