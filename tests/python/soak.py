"""Many mixed requests through a pool far too small for them.

    python tests/python/soak.py --requests 2000

Every request that ends must say what it says alone on a roomy server, to the last logprob; some clients close their
stream or hang up on the way. At the end nothing runs, no page is used and the cache agrees with itself.
"""

import argparse
import asyncio
import json
import random
import sys
from collections import Counter

import httpx
from octavo_server import PATIENCE, Server

# Prompts are up to 300 tokens and answers up to 80, so that one request alone needs up to 24 of the pages.
PAGES = 48
CLIENTS = 40


def requests(count, seed):
    """The body of each request, and what its client does: `read`, `close` the stream after a while, or `hang up`."""
    dice = random.Random(seed)
    families = [[dice.randrange(10, 6000) for _ in range(length)] for length in (16, 30, 64, 100, 180)]
    for number in range(count):
        own = [dice.randrange(10, 6000) for _ in range(dice.randrange(1, 120))]
        body = {
            "prompt": (dice.choice(families) if dice.random() < 0.7 else []) + own,
            "max_tokens": dice.randrange(1, 80),
            "ignore_eos": dice.random() < 0.8,
            "stream": dice.random() < 0.6,
        }
        if dice.random() < 0.4:
            body |= {"temperature": 1, "seed": number}
        else:
            body |= {"temperature": 0}
        if dice.random() < 0.5:
            body |= {"logprobs": dice.randrange(3)}
        if dice.random() < 0.15:
            body |= {"n": 2, "temperature": 1, "seed": number}
        if dice.random() < 0.1:
            body |= {"stop": ["e", "\n"]}
        if dice.random() < 0.2:
            body |= {"cache_salt": dice.choice("ab")}
        if dice.random() < 0.2:
            body |= {"priority": dice.randrange(-2, 3)}
        fate = dice.random()
        if fate < 0.15:
            yield body | {"stream": True}, "close", dice.randrange(0, 12)
        elif fate < 0.25:
            yield body | {"stream": False}, "hang up", dice.random() * 0.3
        else:
            yield body, "read", None


def merge(choices, chunk):
    """Adds a chunk of a stream to the choices so far, so that they become those of a whole answer."""
    for part in chunk["choices"]:
        choice = choices.setdefault(part["index"], {"text": "", "tokens": [], "logprobs": [], "finish_reason": None})
        add(choice, part)


def add(choice, part):
    choice["text"] += part["text"]
    choice["finish_reason"] = part["finish_reason"] or choice["finish_reason"]
    if part["logprobs"]:
        choice["tokens"] += part["logprobs"]["tokens"]
        choice["logprobs"] += part["logprobs"]["token_logprobs"]


async def read(client, body):
    """The choices of an answer by index, the same whether it was streamed or not."""
    choices = {}
    if not body["stream"]:
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        merge(choices, answer.json())
        return choices
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        ended = False
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                assert not ended, "something came after the end"
                ended = line == "data: [DONE]"
                chunk = {"choices": []} if ended else json.loads(line[len("data: ") :])
                assert "error" not in chunk, chunk
                merge(choices, chunk)
        assert ended, "the stream broke off"
    return choices


async def close(client, body, after):
    """Reads so many lines of a stream and leaves."""
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for _ in answer.aiter_lines():
            after -= 1
            if after < 0:
                return


async def hang_up(client, body, after):
    """Leaves while nothing has come yet, unless the answer is quicker."""
    try:
        await client.post("/v1/completions", json=body, timeout=httpx.Timeout(PATIENCE, read=max(after, 0.001)))
    except httpx.ReadTimeout:
        pass


async def crowd(server, work):
    """What came of every request; a fixed number of clients take one after the other."""
    answers, pending = {}, iter(list(enumerate(work)))
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE * 5, limits=limits) as client:

        async def serve():
            for at, (body, fate, after) in pending:
                if fate == "read":
                    answers[at] = await read(client, body)
                elif fate == "close":
                    await close(client, body, after)
                else:
                    await hang_up(client, body, after)

        await asyncio.gather(*(serve() for _ in range(CLIENTS)))
    return answers


async def compare(server, work, answers, say):
    """Asks a server with room for the same, one request at a time and with nothing cached."""
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
        for done, (at, found) in enumerate(sorted(answers.items()), 1):
            body = work[at][0]
            expected = await read(client, body)
            assert found == expected, f"request {at}: {body}\n{found}\n{expected}"
            if done % 200 == 0:
                say(f"{done} compared")


def soak(count, seed=1, pages=PAGES, say=lambda text: None):
    """Runs it; raises if anything is wrong, otherwise returns what happened."""
    work = list(requests(count, seed))
    small = Server("--num-pages", str(pages), "--max-batch-size", "24", "--prompt-share", "1", "--log", "warn")
    roomy = Server("--max-batch-size", "2", "--no-prefix-cache", "--log", "warn")
    try:
        answers = asyncio.run(crowd(small, work))
        say(f"all {count} have ended; now each alone")
        asyncio.run(compare(roomy, work, answers, say))
        small.wait_until_idle()
        summary = {
            "requests": count,
            "read_and_equal": len(answers),
            "fates": dict(Counter(fate for _, fate, _ in work)),
            "characters_compared": sum(len(choice["text"]) for answer in answers.values() for choice in answer.values()),
            "pages": small.pages(),
            **{
                name: int(small.metric(f"octavo_{name}_total"))
                for name in ("preemptions", "tokens_recomputed", "pages_evicted", "prompt_tokens_cached", "generation_tokens",
                             "failed_steps", "failed_audits")
            },
        }
        assert summary["failed_steps"] == summary["failed_audits"] == 0, summary
        small.stop()
        roomy.stop()
        return summary
    finally:
        small.kill()
        roomy.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pages", type=int, default=PAGES)
    options = parser.parse_args()
    say = lambda text: print(text, file=sys.stderr, flush=True)
    print(json.dumps(soak(options.requests, options.seed, options.pages, say), indent=2))


if __name__ == "__main__":
    main()
