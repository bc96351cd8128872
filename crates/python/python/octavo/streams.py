"""Texts as they come, for those who wait with a thread and for those who wait with asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any

from ._octavo import Run, Waker
from .outputs import Chunk, RequestOutput, checked, logprob, request_output

__all__ = ["AsyncStream", "Stream"]

_A_WHILE = 3600.0
"""Longer waits are cut into these."""
_RETRY = 0.05
"""How often those who found the queue full try again."""


class _Requests:
    """Requests under way, with what is needed to describe their outputs."""

    def __init__(self, run: Run, prompts: list[str | None], token_ids: list[list[int]]) -> None:
        self.run = run
        self._prompts = prompts
        self._token_ids = token_ids

    def outputs(self) -> list[RequestOutput]:
        raw = self.run.outputs()
        return [
            request_output(*parts) for parts in zip(self._prompts, self._token_ids, raw, strict=True)
        ]


def _chunks(events: list[tuple[Any, ...]]) -> list[Chunk]:
    """Those of one request."""
    chunks = []
    for event in events:
        if event[0] == "token":
            _, _, choice, token, text, entry = event
            chunks.append(Chunk(text, token, choice, logprob(entry)))
        elif event[0] == "finished":
            _, _, choice, reason, text = event
            chunks.append(Chunk(text, None, choice, None, reason))
    return chunks


class Stream(Iterator[Chunk]):
    """One request's chunks, as they come. Leaving the `with` block, or `cancel`, ends it early."""

    def __init__(self, requests: _Requests) -> None:
        self._requests = requests
        self._ready: deque[Chunk] = deque()
        self._cancelled = False

    def __next__(self) -> Chunk:
        while not self._cancelled:
            if self._ready:
                return self._ready.popleft()
            try:
                events = self._requests.run.next(_A_WHILE, True)
            except BaseException:
                self.cancel()
                raise
            if events is None:
                checked([self.output])
                break
            self._ready.extend(_chunks(events))
        raise StopIteration

    @property
    def output(self) -> RequestOutput:
        """What there is so far; everything, once the stream has ended."""
        return self._requests.outputs()[0]

    def cancel(self) -> None:
        """Ends the request, from any thread; nothing comes any more."""
        self._cancelled = True
        self._requests.run.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class Doorbell:
    """Wakes coroutines of one event loop when the engine has something new."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.waker = Waker()
        self._loop = loop
        self._waiting: set[asyncio.Future[None]] = set()
        # The loop outlives whoever has this bell.
        loop.add_reader(self.waker.fileno(), _call, weakref.WeakMethod(self._rung))

    def __del__(self) -> None:
        # From any thread; a loop that was closed has forgotten it already.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_forget, self._loop, self.waker)

    def _rung(self) -> None:
        self.waker.clear()
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, within: float | None) -> None:
        future = self._loop.create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait_for(future, within)
        except asyncio.TimeoutError:
            pass
        finally:
            self._waiting.discard(future)


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    alive = method()
    if alive is not None:
        alive()


def _forget(loop: asyncio.AbstractEventLoop, waker: Waker) -> None:
    loop.remove_reader(waker.fileno())


class AsyncStream(AsyncIterator[Chunk]):
    """One request's chunks, as they come, for asyncio. Leaving the `async with` block, or `cancel`, ends it early."""

    def __init__(self, requests: _Requests, bell: Doorbell) -> None:
        self._requests = requests
        self._bell = bell
        self._ready: deque[Chunk] = deque()
        self._cancelled = False

    async def __anext__(self) -> Chunk:
        while not self._cancelled:
            if self._ready:
                return self._ready.popleft()
            events = await wait(self._requests.run, self._bell, detail=True)
            if events is None:
                checked([self.output])
                break
            self._ready.extend(_chunks(events))
        raise StopAsyncIteration

    @property
    def output(self) -> RequestOutput:
        """What there is so far; everything, once the stream has ended."""
        return self._requests.outputs()[0]

    def cancel(self) -> None:
        """Ends the request; nothing comes any more."""
        self._cancelled = True
        self._requests.run.cancel()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


async def wait(run: Run, bell: Doorbell, *, detail: bool) -> list[tuple[Any, ...]] | None:
    """What is new, or None once everything has ended. A task that is cancelled meanwhile cancels the requests."""
    try:
        while True:
            events = run.next(0.0, detail)
            if events is None or events:
                return events
            held = run.progress()[1]
            await bell.wait(_RETRY if held else None)
    except BaseException:
        run.cancel()
        raise
