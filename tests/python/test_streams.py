"""Clients that go away, prompts that are read in the middle of it, and servers that have enough to do."""

import socket
import threading

import openai
import pytest
from octavo_server import wait_until

MODEL = "octavo-demo"
LONG = [11 + token % 500 for token in range(3500)]


def stream(server, prompt="A vector", **options):
    options = {"max_tokens": 3000, "temperature": 0, "extra_body": {"ignore_eos": True}} | options
    return server.openai().completions.create(model=MODEL, prompt=prompt, stream=True, **options)


@pytest.mark.parametrize("backend", ["paged", "contiguous"])
def test_closing_a_stream_gives_its_pages_back(start, backend):
    server = start("--kv-backend", backend)
    answer = stream(server, n=3)
    next(iter(answer))
    wait_until(lambda: server.pages()["used"] > 0, "the request runs")
    answer.close()
    server.wait_until_idle()
    assert server.metric("octavo_requests_finished_total") == 1
    assert server.metric("octavo_generation_tokens_total") < 9000, "nobody waited for the end"


def test_a_client_that_hangs_up_without_a_stream_cancels_its_request(start):
    server = start()
    host, port = server.url.removeprefix("http://").split(":")
    body = b'{"prompt": "A vector", "max_tokens": 3000, "ignore_eos": true}'
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + body)
        wait_until(lambda: server.pages()["used"] > 0, "the request runs")
    server.wait_until_idle()
    assert server.metric("octavo_generation_tokens_total") < 3000


def test_a_long_prompt_tells_how_far_it_is(start):
    server = start("--chunk", "512")
    seen = [chunk for chunk in stream(server, LONG, max_tokens=2, stream_options={"include_progress": True})]
    progress = [chunk.progress for chunk in seen if not chunk.choices]
    assert [at["processed_tokens"] for at in progress] == [512, 1024, 1536, 2048, 2560, 3072, 3500]
    assert {at["prompt_tokens"] for at in progress} == {3500} and {at["cached_tokens"] for at in progress} == {0}
    assert len(seen) > len(progress) and all(chunk.choices for chunk in seen[len(progress) :])
    plain = [chunk for chunk in stream(server, LONG, max_tokens=2)]
    assert all(chunk.choices for chunk in plain), "nobody is told who did not ask"


def test_a_prompt_cancelled_in_the_middle_goes_on_where_it_stopped(start):
    server = start("--chunk", "16")
    answer = stream(server, LONG, max_tokens=2, stream_options={"include_progress": True})
    first = next(iter(answer)).progress["processed_tokens"]
    answer.close()
    server.wait_until_idle()
    read = server.cache()["counters"]["computed_tokens"]
    assert first <= read < len(LONG), "it was cancelled before the end"
    again = server.openai().completions.create(model=MODEL, prompt=LONG, max_tokens=8, temperature=0)
    assert again.usage.prompt_tokens_details.cached_tokens >= read - 16
    assert server.cache()["counters"]["computed_tokens"] <= len(LONG) + 16 + 8, "only the rest was computed"
    alone = start().openai().completions.create(model=MODEL, prompt=LONG, max_tokens=8, temperature=0)
    assert again.choices == alone.choices


def test_who_finds_the_queue_full_is_told_when_to_come_back(start):
    server = start("--max-batch-size", "1", "--max-queue", "1")
    running = stream(server)
    next(iter(running))
    waiting = threading.Thread(target=lambda: server.openai().completions.create(model=MODEL, prompt="a"))
    waiting.start()
    wait_until(lambda: server.cache()["waiting"] == 1, "the second waits")
    with pytest.raises(openai.InternalServerError) as raised:
        server.openai().completions.create(model=MODEL, prompt="b")
    assert raised.value.status_code == 503 and raised.value.code == "queue_full"
    assert int(raised.value.response.headers["retry-after"]) >= 1
    running.close()
    waiting.join()
    server.wait_until_idle()
    server.openai().completions.create(model=MODEL, prompt="b")


def test_the_official_client_comes_back_by_itself_and_is_answered(start):
    server = start("--max-requests", "1")
    running = stream(server)
    next(iter(running))
    with pytest.raises(openai.InternalServerError) as raised:
        server.openai().completions.create(model=MODEL, prompt="a")
    assert raised.value.code == "too_many_requests"
    answers = []
    patient = server.openai(max_retries=20)
    asking = threading.Thread(target=lambda: answers.append(patient.completions.create(model=MODEL, prompt="a")))
    refused = server.metric("octavo_http_requests_total")
    asking.start()
    wait_until(lambda: server.metric("octavo_http_requests_total") > refused + 1, "it was refused at least once")
    running.close()
    asking.join()
    assert answers[0].choices[0].text


def test_a_slow_reader_holds_nobody_up(start):
    server = start("--max-batch-size", "2")
    slow = stream(server)
    next(iter(slow))
    for _ in range(5):
        server.openai().completions.create(model=MODEL, prompt="a", max_tokens=4)
    wait_until(lambda: not server.cache()["sequences"], "the engine is done although nobody reads")
    reasons = [chunk.choices[0].finish_reason for chunk in slow]
    assert reasons[-1] == "length" and len(reasons) > 1000, "what was kept for it is all there"
