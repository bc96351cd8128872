"""The same answer, to the bit, whether a request ran alone, in a crowd, from the cache or after a preemption."""

import asyncio
import random

import pytest

MODEL = "octavo-demo"
CROWD = 64
TOPICS = ["A vector", "Ownership means that", "The borrow checker", "A trait object", "Iterators are lazy"]


def crowd():
    """Requests of many lengths. Some begin alike; some are drawn, with a seed."""
    dice = random.Random(64)
    prefixes = [[dice.randrange(10, 6000) for _ in range(length)] for length in (20, 48, 130)]
    bodies = []
    for number in range(CROWD):
        prompt = dice.choice(prefixes) + [dice.randrange(10, 6000) for _ in range(dice.randrange(1, 60))]
        if number % 8 == 0:
            prompt = dice.choice(TOPICS)
        drawn = {"temperature": 1, "seed": number} if number % 4 == 1 else {"temperature": 0}
        options = {"max_tokens": dice.randrange(8, 100), "logprobs": 1, "extra_body": {"ignore_eos": True}}
        bodies.append({"model": MODEL, "prompt": prompt, **drawn, **options})
    return bodies


@pytest.fixture(scope="module")
def alone(server):
    """Every answer of the crowd, one at a time and with nothing from the cache."""
    salted = lambda at, body: body | {"extra_body": body["extra_body"] | {"cache_salt": f"alone {at}"}}
    client = server.openai()
    return [client.completions.create(**salted(at, body)).choices for at, body in enumerate(crowd())]


async def ask_all(server):
    """All at once: half of them whole, half as streams."""

    async def whole(client, body):
        return (await client.completions.create(**body)).choices

    async def streamed(client, body):
        text, rows, reason = "", [], None
        async for chunk in await client.completions.create(**body, stream=True):
            choice = chunk.choices[0]
            text, reason = text + choice.text, choice.finish_reason or reason
            rows += choice.logprobs.token_logprobs if choice.logprobs else []
        return text, rows, reason

    async with server.async_openai() as client:
        ways = [whole, streamed]
        return await asyncio.gather(*(ways[at % 2](client, body) for at, body in enumerate(crowd())))


def check(server, alone):
    for at, (found, expected) in enumerate(zip(asyncio.run(ask_all(server)), alone)):
        if at % 2:
            choice = expected[0]
            expected = (choice.text, choice.logprobs.token_logprobs, choice.finish_reason)
        assert found == expected, f"request {at}"
    server.wait_until_idle()


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--kv-backend", "contiguous"],
        ["--batching", "static"],
        ["--no-prefix-cache", "--page-size", "5"],
        ["--chunk", "7", "--threads", "1", "--max-batch-size", "64"],
        ["--max-itl-ms", "1"],
    ],
    ids=["default", "contiguous", "static", "pages-of-5", "chunks-of-7", "max-itl"],
)
def test_a_crowd_is_answered_as_if_each_were_alone(start, alone, options):
    check(start(*options), alone)


def test_answers_from_the_cache_are_the_same(start, alone):
    server = start()
    check(server, alone)
    before = server.metric("octavo_prompt_tokens_cached_total")
    check(server, alone)
    assert server.metric("octavo_prompt_tokens_cached_total") - before > 2000


@pytest.mark.parametrize("policy", ["lru", "priority", "adaptive"])
def test_answers_after_preemptions_and_evictions_are_the_same(start, alone, policy):
    server = start("--num-pages", "40", "--max-batch-size", "32", "--prompt-share", "1", "--eviction", policy)
    check(server, alone)
    assert server.metric("octavo_preemptions_total") > 0
    assert server.metric("octavo_pages_evicted_total") > 0
