"""How a server ends."""

import signal

import httpx
import openai
import pytest
from octavo_server import wait_until

MODEL = "octavo-demo"


def stream(server, **options):
    options = {"max_tokens": 1000, "temperature": 0, "extra_body": {"ignore_eos": True}} | options
    return server.openai().completions.create(model=MODEL, prompt="A vector", stream=True, **options)


def is_draining(server):
    return "letting requests end" in server.errors()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stream_under_way_ends_complete(start, number):
    server = start()
    expected = "".join(chunk.choices[0].text for chunk in stream(server))
    answer = stream(server)
    chunks = [next(iter(answer))]
    server.signal(number)
    wait_until(lambda: is_draining(server), "it drains")
    chunks += list(answer)
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "length"
    assert server.exit_code() == 0


def test_meanwhile_new_requests_are_refused(start):
    server = start("--max-batch-size", "1")
    answers = [stream(server, max_tokens=4000) for _ in range(3)]
    next(iter(answers[0]))
    server.signal()
    ready = wait_until(lambda: (ready := server.get("/ready")).status_code == 503 and ready, "it is not ready")
    assert ready.json() == {"ready": False, "why_not": "shutting down"}
    with pytest.raises(openai.InternalServerError) as raised:
        server.openai().completions.create(model=MODEL, prompt="a")
    assert raised.value.status_code == 503 and raised.value.code == "shutting_down"
    assert "retry-after" in raised.value.response.headers
    for answer in answers:
        answer.close()
    assert server.exit_code() == 0


def test_a_second_signal_ends_at_once(start):
    server = start("--max-batch-size", "1")
    answers = [stream(server, max_tokens=4000) for _ in range(3)]
    next(iter(answers[0]))
    server.signal()
    wait_until(lambda: is_draining(server), "it drains")
    server.signal()
    assert server.exit_code() == 130
    with pytest.raises(Exception, match="peer|incomplete|closed|reset|Connection"):
        for answer in answers:
            list(answer)


def test_at_the_deadline_requests_under_way_fail_and_say_why(start):
    server = start("--drain", "0", "--max-batch-size", "1")
    running, waiting = stream(server, max_tokens=4000), stream(server, max_tokens=4000)
    next(iter(running))
    server.signal()
    for answer in (running, waiting):
        with pytest.raises(openai.APIError) as raised:
            list(answer)
        assert raised.value.code == "shutting_down", raised.value
    assert server.exit_code() == 0


def test_with_nothing_to_do_it_ends_at_once_and_well(start):
    server = start()
    idle = httpx.Client(base_url=server.url)
    idle.get("/health")
    server.signal()
    assert server.exit_code() == 0
    idle.close()
