"""A model that answers many prompts at once."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import re
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from operator import index
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ._octavo import Engine, Run
from .outputs import RequestOutput, checked
from .sampling import SamplingParams, items
from .streams import AsyncStream, Doorbell, Stream, _Requests, wait

__all__ = ["LLM", "EngineOptions"]

Tokens = Sequence[int] | NDArray[np.integer[Any]]
Prompt = str | Tokens
Messages = Sequence[Mapping[str, Any]]
Progress = Callable[[int, int, int], object]
"""Called with the requests that have ended, all requests, and the tokens generated so far."""

_GLANCE = 0.05
"""Between two looks at whether to stop."""


class Cancel(Protocol):
    """Whatever says when to stop, such as a `threading.Event`."""

    def is_set(self) -> bool: ...


@dataclass
class EngineOptions:
    """How a model is loaded and run. `LLM` takes them by name."""

    device: str = "auto"
    """auto (a GPU if there is one that can), cpu, cuda or cuda:N."""
    deterministic: bool = False
    """On a GPU, too, no bit of a result depends on what else is in the batch; on the CPU none ever does."""
    threads: int | None = None
    """Threads to compute with on the CPU; one a core unless given."""
    weights: str = "stored"
    """stored, as the files have them, f32 or int8."""
    kv_backend: str = "paged"
    """paged or contiguous."""
    kv_dtype: str = "float16"
    """float32, float16, bfloat16, fp8 or int8."""
    page_size: int = 16
    """Tokens of a page."""
    kv_window: int | None = None
    """No layer looks further back than this."""
    kv_memory: int | None = None
    """Bytes for keys and values; enough for a full batch unless given."""
    num_pages: int | None = None
    """The same as a number of pages."""
    commit_kv: bool = False
    """Take that memory from the system at the start, not when pages are first written; on a GPU it always is."""
    cached_memory: int | None = None
    """The most bytes that cached prefixes keep while nobody uses them; all that is not needed unless given."""
    zero_freed: bool = False
    """Zero pages before another request gets them."""
    policy: str = "lru"
    """Which cached pages go when room is needed: lru, priority or adaptive."""
    prefix_cache: bool = True
    """Whether what prompts begin with alike is computed once and shared."""
    max_len: int | None = None
    """The most tokens of a prompt and what follows it; what the model was made for unless given."""
    max_batch: int = 64
    """Sequences that run at once."""
    batching: str = "continuous"
    """continuous or static."""
    prompt_share: float = 0.8
    """The share of the free pages that new prompts may take while others run."""
    chunk: tuple[int, int] | None = None
    """The fewest and the most prompt tokens of one step."""
    max_itl: float | None = None
    """The longest gap between two tokens of running requests, in seconds, while a prompt is read."""
    max_waiting: int = 1024
    """Requests that may wait; `generate` holds back what is beyond."""
    aging: float = 10.0
    """Waiting so many seconds counts as much as one step of priority."""
    time_limit: float | None = None
    """Seconds, for requests that name none."""


class LLM:
    """A model on a thread of its own. Prompts of all callers run together.

    `model` is a directory in Hugging Face's layout, or a name on the hub like `org/name`; the built-in model unless
    given. The other arguments are those of `EngineOptions`. `progress` is called with what is loaded, the bytes done
    and the bytes in all; on a GPU then with "steps", how many of those it gets ready for are done, and all of them.

    >>> llm = LLM(max_batch=8)
    >>> outputs = llm.generate(["The Vec type is", "A String is"], SamplingParams(max_tokens=5))
    >>> [len(output.token_ids) for output in outputs]
    [5, 5]
    >>> answer = llm.chat([{"role": "user", "content": "What does Vec::push do?"}])
    >>> "element" in answer.text
    True
    >>> for chunk in llm.stream("The Vec type is", SamplingParams(max_tokens=5)):
    ...     text = chunk.text
    >>> llm.prefix_cache_stats()["hit_tokens"] >= 0
    True
    >>> llm.close()
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        progress: Callable[[str, int, int], object] | None = None,
        **options: Any,
    ) -> None:
        name = None if model is None else os.fspath(model)
        with _named_fields():
            self._engine = Engine(name, EngineOptions(**options), progress)
        self._bells: dict[asyncio.AbstractEventLoop, Doorbell] = {}
        for note in self._engine.notes:
            warnings.warn(note, stacklevel=2)
        _open.add(self)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: Progress | None = None,
        cancel: Cancel | None = None,
    ) -> list[RequestOutput]:
        """Continues each prompt, a text or a list of tokens, all of them together.

        `params` is one for all or one for each. Once `cancel.is_set()`, what has not ended ends as it is. Ctrl-C, and
        whatever `progress` raises, ends everything and leaves nothing behind.
        """
        requests = self._start(_listed(prompts), params)
        total = requests.run.progress()[0]
        try:
            while requests.run.next(_GLANCE, False) is not None:
                left, _, tokens = requests.run.progress()
                if progress is not None:
                    progress(total - left, total, tokens)
                if cancel is not None and cancel.is_set():
                    requests.run.cancel()
        finally:
            requests.run.cancel()
        return checked(requests.outputs())

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Stream:
        """Continues one prompt; iterate over the chunks as they come."""
        return Stream(self._start([prompt], params))

    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        cancel: Cancel | None = None,
    ) -> RequestOutput:
        """Answers a conversation: messages with `role` and `content`. `template` are variables of the model's chat
        template, such as `enable_thinking`."""
        tokens = self.encode_chat(messages, tools=tools, template=template)
        return self.generate([tokens], params, progress=progress, cancel=cancel)[0]

    def chat_stream(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> Stream:
        """Answers a conversation; iterate over the chunks as they come."""
        return self.stream(self.encode_chat(messages, tools=tools, template=template), params)

    async def agenerate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: Progress | None = None,
    ) -> list[RequestOutput]:
        """As `generate`, for asyncio. Cancelling the task cancels the requests."""
        bell = self._bell()
        requests = self._start(_listed(prompts), params, bell)
        total = requests.run.progress()[0]
        try:
            while await wait(requests.run, bell, detail=False) is not None:
                left, _, tokens = requests.run.progress()
                if progress is not None:
                    progress(total - left, total, tokens)
        finally:
            requests.run.cancel()
        return checked(requests.outputs())

    def astream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncStream:
        """As `stream`, for `async for`. Call it where the loop runs."""
        bell = self._bell()
        return AsyncStream(self._start([prompt], params, bell), bell)

    async def achat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> RequestOutput:
        """As `chat`, for asyncio."""
        tokens = self.encode_chat(messages, tools=tools, template=template)
        return (await self.agenerate([tokens], params))[0]

    def achat_stream(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> AsyncStream:
        """As `chat_stream`, for `async for`."""
        return self.astream(self.encode_chat(messages, tools=tools, template=template), params)

    def encode(self, text: str) -> list[int]:
        """The tokens of a prompt."""
        return self._engine.encode(text)

    def decode(self, tokens: Tokens) -> str:
        """The text of some tokens, without special ones."""
        return self._engine.decode(_token_ids("tokens is a list of tokens", tokens))

    def encode_chat(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The tokens of a conversation, up to where the model's answer begins."""
        listed = _dicts("messages is a list of messages, each a dict with `role` and `content`", messages)
        if not listed:
            raise ValueError("messages is empty: a conversation has at least one message")
        if template is not None and not isinstance(template, Mapping):
            raise TypeError(f"template is a dict of variables, not {type(template).__name__}")
        return self._engine.encode_chat(
            _json("messages", listed),
            None if tools is None else _json("tools", _dicts("tools is a list of dicts", tools)),
            None if template is None else _json("template", dict(template)),
        )

    def stats(self) -> dict[str, Any]:
        """Requests, tokens and pages, as they are between two steps of the engine.

        Used, cached, reserved and free blocks add up to the total.
        """
        return self._engine.stats()

    def prefix_cache_stats(self) -> dict[str, Any]:
        """Of the prefix cache alone: lookups, tokens found and missed, evictions, cached pages."""
        stats = self._engine.stats()
        return {name: stats[name] for name in _PREFIX_STATS}

    def drop_prefixes(self) -> int:
        """Forgets every cached prefix that nobody uses; says how many pages that freed."""
        return self._engine.drop_prefixes()

    def check(self) -> None:
        """Raises RuntimeError if the engine's cache does not agree with itself."""
        problem = self._engine.audit()
        if problem is not None:
            raise RuntimeError(problem)

    @property
    def name(self) -> str:
        """What people call the model."""
        return self._engine.name

    @property
    def device(self) -> str:
        """What computes."""
        return self._engine.device

    @property
    def max_len(self) -> int:
        """The most tokens of a prompt and what follows it."""
        return self._engine.max_len

    def close(self, within: float = 0.0) -> None:
        """Ends what runs, after so many seconds at most, and frees the model's memory."""
        _open.discard(self)
        self._engine.close(within)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LLM({self.name!r}, device={self.device!r})"

    def _start(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        bell: Doorbell | None = None,
    ) -> _Requests:
        tokens = [
            self.encode(prompt) if isinstance(prompt, str) else _token_ids(_A_PROMPT, prompt)
            for prompt in prompts
        ]
        wanted = _one_each(params, len(prompts))
        with _named_fields():
            run = Run(self._engine, tokens, wanted, None if bell is None else bell.waker)
        return _Requests(run, [prompt if isinstance(prompt, str) else None for prompt in prompts], tokens)

    def _bell(self) -> Doorbell:
        loop = asyncio.get_running_loop()
        bell = self._bells.get(loop)
        if bell is None:
            for closed in [other for other in list(self._bells) if other.is_closed()]:
                self._bells.pop(closed, None)
            bell = self._bells[loop] = Doorbell(loop)
        return bell


_PREFIX_STATS = (
    "lookups",
    "hit_tokens",
    "missed_tokens",
    "hit_rate",
    "evictions",
    "evicted_blocks",
    "forks",
    "copies_on_write",
    "partial_copies",
    "cached_blocks",
    "pinned_blocks",
)


@contextmanager
def _named_fields() -> Iterator[None]:
    """Says which option is wrong, and how."""
    try:
        yield
    except TypeError as error:
        field, cause = re.search(r"field Raw\.(\w+)", str(error)), error.__cause__
        if field is None or cause is None:
            raise
        if isinstance(cause, OverflowError):
            raise ValueError(f"{field[1]}: the number is too small or too large") from None
        raise TypeError(f"{field[1]}: {cause}") from None


_A_PROMPT = "a prompt is a text or a list of tokens (chat() takes messages)"


def _listed(prompts: Any) -> list[Any]:
    """One prompt is a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    listed = items(_A_PROMPT, prompts)
    if listed and all(isinstance(token, Integral) for token in listed):
        return [listed]
    return listed


def _token_ids(what: str, tokens: Any) -> list[int]:
    """As plain numbers, whatever they were before."""
    listed = items(what, tokens)
    try:
        ids = [index(token) for token in listed]
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from None
    for token in ids:
        if not 0 <= token < 2**32:
            raise ValueError(f"there is no token {token}")
    return ids


def _dicts(what: str, value: Any) -> list[dict[str, Any]]:
    listed = items(what, value)
    for item in listed:
        if not isinstance(item, Mapping):
            raise TypeError(f"{what}: one is {type(item).__name__}")
    return [dict(item) for item in listed]


def _json(name: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    what = "params is a SamplingParams, or one for each prompt"
    wanted = items(what, params)
    for other in wanted:
        if not isinstance(other, SamplingParams):
            raise TypeError(f"{what}, not {type(other).__name__}")
    if len(wanted) != count:
        raise ValueError(f"{len(wanted)} params for {count} prompts: give one, or one for each")
    return wanted


_open: weakref.WeakSet[LLM] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Whoever still waits, on a thread that nobody joined, is told that it is over; then nothing runs any more."""
    for llm in list(_open):
        llm.close()
