"""The engine behind one class."""

import asyncio
import dataclasses
import gc
import json
import os
import pickle
import re
import threading
import time

import numpy as np
import pytest

import octavo
from conftest import idle
from octavo import LLM, SamplingParams

PROMPTS = ["The Vec type is", "A String is", "The HashMap type", "Option<T> is", "A trait is"]
FEW = SamplingParams(max_tokens=12)


def test_the_built_in_model_answers_in_three_lines(llm):
    answer = llm.chat([{"role": "user", "content": "What does Vec::push do?"}])
    assert "element" in answer.text
    assert answer.finish_reason == "stop" and answer.error is None
    assert llm.decode(answer.token_ids).strip() == answer.text.strip()


def test_prompts_run_together_and_say_what_each_says_alone(llm):
    together = llm.generate(PROMPTS, FEW)
    alone = [llm.generate(prompt, FEW)[0] for prompt in PROMPTS]
    assert [output.token_ids for output in together] == [output.token_ids for output in alone]
    assert [output.prompt for output in together] == PROMPTS


def test_many_prompts_share_steps():
    with LLM(max_batch=64) as llm:
        llm.generate([f"The type number {i} is" for i in range(64)], SamplingParams(max_tokens=20, ignore_eos=True))
        stats = llm.stats()
        assert stats["generation_tokens"] == 64 * 20
        assert stats["steps"] < 200  # one by one they would be 1280


def test_more_prompts_than_may_wait_are_held_back_and_all_answered():
    with LLM(max_batch=4, max_waiting=3) as llm:
        outputs = llm.generate([f"Number {i} is" for i in range(40)], SamplingParams(max_tokens=3, ignore_eos=True))
        assert [len(output.token_ids) for output in outputs] == [3] * 40
        asked = [llm.agenerate(f"Number {i} is", SamplingParams(max_tokens=3, ignore_eos=True)) for i in range(40)]

        async def all_at_once():
            return await asyncio.gather(*asked)

        again = asyncio.run(all_at_once())
        assert [output[0].token_ids for output in again] == [output.token_ids for output in outputs]


def test_a_prompt_is_text_or_tokens(llm):
    tokens = llm.encode("The Vec type is")
    by_text, by_tokens = llm.generate("The Vec type is", FEW)[0], llm.generate(tokens, FEW)[0]
    assert by_text.token_ids == by_tokens.token_ids
    assert (by_text.prompt, by_tokens.prompt) == ("The Vec type is", None)
    assert by_tokens.prompt_token_ids == tokens
    assert len(llm.generate([tokens, "A String is"], FEW)) == 2
    assert llm.generate([], FEW) == []


def test_params_are_one_for_all_or_one_for_each(llm):
    outputs = llm.generate(PROMPTS[:2], [SamplingParams(max_tokens=2), SamplingParams(max_tokens=4)])
    assert [len(output.token_ids) for output in outputs] == [2, 4]
    with pytest.raises(ValueError, match="3 params for 2 prompts"):
        llm.generate(PROMPTS[:2], [FEW] * 3)


def test_a_stream_says_what_generate_says(llm):
    whole = llm.generate("The Vec type is", FEW)[0]
    stream = llm.stream("The Vec type is", FEW)
    chunks = list(stream)
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [chunk.token_id for chunk in chunks if chunk.token_id is not None] == whole.token_ids
    assert chunks[-1].finish_reason == whole.finish_reason and chunks[0].finish_reason is None
    assert chunks[-1].token_id is None and chunks[-1].logprob is None, "an end is no token"
    assert stream.output.outputs == whole.outputs
    assert list(stream) == []


def test_a_stream_comes_while_it_is_generated(llm):
    stream = llm.stream("The Vec type is", SamplingParams(max_tokens=4000, ignore_eos=True))
    next(stream)
    assert llm.stats()["requests_running"] == 1
    stream.cancel()


def test_a_conversation_is_streamed(llm):
    messages = [{"role": "user", "content": "What does Vec::push do?"}]
    text = "".join(chunk.text for chunk in llm.chat_stream(messages))
    assert text == llm.chat(messages).text


LONG = SamplingParams(max_tokens=4000, ignore_eos=True)


def test_leaving_a_stream_cancels_it(llm):
    with llm.stream("The Vec type is", LONG) as stream:
        next(stream)
    assert idle(llm) == 0
    assert stream.output.finish_reason == "cancelled" and 1 <= len(stream.output.token_ids) < 4000
    assert list(stream) == []


def test_a_stream_is_cancelled_from_another_thread(llm):
    for wait in range(30):
        stream = llm.stream("The Vec type is", LONG)
        timer = threading.Timer(wait / 1000, stream.cancel)
        timer.start()
        assert len(list(stream)) < 4000
        assert idle(llm) == 0
        timer.join()


def test_a_cancel_while_another_thread_takes_its_last_event_is_not_lost(llm):
    prompt = llm.encode("The Vec type is a growable array. " * 60)
    for wait in range(20):
        before = llm.stats()["finished_cancelled"]
        stream = llm.stream([wait + 10, *prompt], LONG)
        waiter = threading.Thread(target=stream._requests.run.next, args=(5.0, True))
        waiter.start()
        time.sleep(0.002)
        stream.cancel()
        waiter.join()
        assert idle(llm) == 0
        assert llm.stats()["finished_cancelled"] == before + 1


def test_an_event_cancels_generate(llm):
    stop, seen = threading.Event(), []

    def progress(done, total, tokens):
        seen.append((done, total, tokens))
        if tokens > 20:
            stop.set()

    outputs = llm.generate(PROMPTS, LONG, progress=progress, cancel=stop)
    assert {output.finish_reason for output in outputs} == {"cancelled"}
    assert seen[-1][1] == 5 and seen == sorted(seen)
    assert idle(llm) == 0


def test_what_progress_raises_ends_everything(llm):
    def progress(done, total, tokens):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        llm.generate(PROMPTS, LONG, progress=progress)
    assert idle(llm) == 0


def test_progress_counts_requests_and_tokens(llm):
    seen = []
    outputs = llm.generate(PROMPTS, FEW, progress=lambda *at: seen.append(at))
    assert seen[-1][:2] == (5, 5)
    assert seen[-1][2] == sum(len(output.token_ids) for output in outputs)


def test_progress_counts_those_that_are_done(llm):
    seen = []
    # Long enough that it is told while both are under way.
    long = SamplingParams(max_tokens=600, ignore_eos=True)
    llm.generate(PROMPTS[:2], long, progress=lambda done, total, _: seen.append((done, total)))
    assert all(0 <= done <= total == 2 for done, total in seen), seen
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_loading_reports_its_progress():
    seen = []
    LLM(progress=lambda what, done, total: seen.append((what, done, total))).close()
    what, done, total = seen[-1]
    assert what == "weights" and done == total > 1_000_000


def test_coroutines_run_together(llm):
    async def both():
        outputs = await asyncio.gather(*(llm.agenerate(prompt, FEW) for prompt in PROMPTS))
        text = "".join([chunk.text async for chunk in llm.astream(PROMPTS[0], FEW)])
        chat = await llm.achat([{"role": "user", "content": "What does Vec::push do?"}])
        async with llm.achat_stream([{"role": "user", "content": "What does Vec::push do?"}]) as stream:
            streamed = "".join([chunk.text async for chunk in stream])
        return outputs, text, chat.text, streamed

    outputs, text, chat, streamed = asyncio.run(both())
    want = llm.generate(PROMPTS, FEW)
    assert [output.text for (output,) in outputs] == [output.text for output in want]
    assert text == want[0].text and "element" in chat == streamed


def test_a_cancelled_task_cancels_its_requests(llm):
    async def impatient():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(llm.agenerate(PROMPTS, LONG), 0.1)
        async with llm.astream("The Vec type is", LONG) as stream:
            await stream.__anext__()
        task = asyncio.create_task(llm.astream("The Vec type is", LONG).__anext__())
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(impatient())
    assert idle(llm) == 0


def test_the_loop_is_free_while_others_generate(llm):
    async def count():
        beats, task = 0, asyncio.create_task(llm.agenerate(PROMPTS, SamplingParams(max_tokens=600, ignore_eos=True)))
        while not task.done():
            await asyncio.sleep(0.001)
            beats += 1
        return beats

    assert asyncio.run(count()) > 10


def test_a_loop_after_another_works(llm):
    def open_files():
        return len(os.listdir("/proc/self/fd"))

    asyncio.run(llm.agenerate("The Vec type is", FEW))
    before = open_files()
    for _ in range(10):
        assert asyncio.run(llm.agenerate("The Vec type is", FEW))[0].token_ids
    assert open_files() <= before


def test_equal_beginnings_are_found_in_the_prefix_cache():
    with LLM() as llm:
        before = llm.prefix_cache_stats()
        assert before["lookups"] == before["hit_tokens"] == 0
        prompt = llm.encode("The Vec type is a contiguous growable array. " * 8)
        llm.generate(prompt, FEW)
        output = llm.generate(prompt, FEW)[0]
        stats = llm.prefix_cache_stats()
        assert output.usage.cached_tokens == stats["hit_tokens"] >= len(prompt) - 16
        assert stats["lookups"] == 2 and 0 < stats["hit_rate"] < 1
        salted = llm.generate(prompt, SamplingParams(max_tokens=2, salt=b"mine"))[0]
        assert salted.usage.cached_tokens == 0
        assert llm.drop_prefixes() > 0
        assert llm.prefix_cache_stats()["cached_blocks"] == 0


def test_a_cache_can_be_without_prefixes():
    with LLM(prefix_cache=False) as llm:
        prompt = llm.encode("The Vec type is a contiguous growable array. " * 8)
        llm.generate([prompt], FEW)
        assert llm.generate([prompt], FEW)[0].usage.cached_tokens == 0


def test_texts_follow_a_grammar(llm):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    params = [
        SamplingParams(json_schema=schema, max_tokens=60),
        SamplingParams(regex=r"[0-9]{3}-[a-z]{2}", max_tokens=30),
        SamplingParams(choices=["yes", "no"], max_tokens=10),
        SamplingParams(grammar='start: "a" "b"+ "c"', max_tokens=40, logit_bias={}),
    ]
    outputs = llm.generate(["Answer:"] * 4, params)
    assert isinstance(json.loads(outputs[0].text)["n"], int)
    assert re.fullmatch(r"[0-9]{3}-[a-z]{2}", outputs[1].text)
    assert outputs[2].text in ("yes", "no")
    assert re.match(r"ab+", outputs[3].text)


def test_stop_texts_end_a_text(llm):
    whole = llm.generate("The Vec type is", SamplingParams(max_tokens=40))[0].text
    word = whole.split()[3]
    cut = llm.generate("The Vec type is", SamplingParams(max_tokens=40, stop=["\0", word]))[0]
    assert cut.text == whole[: whole.index(word)]
    assert (cut.finish_reason, cut.outputs[0].stop_index) == ("stop", 1)
    kept = llm.generate("The Vec type is", SamplingParams(max_tokens=40, stop=word, include_stop=True))[0]
    assert kept.text == cut.text + word


def test_continuations_and_logprobs(llm):
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=6, ignore_eos=True, logprobs=2, prompt_logprobs=1)
    output = llm.generate("The Vec type is", params)[0]
    assert len(output.outputs) == 3 and len({tuple(o.token_ids) for o in output.outputs}) > 1
    for choice in output.outputs:
        assert [entry.token_id for entry in choice.logprobs] == choice.token_ids
        assert all(len(entry.top) == 2 and entry.logprob <= 0 for entry in choice.logprobs)
    assert output.prompt_logprobs[0] is None and output.prompt_logprobs[1].logprob < 0
    assert output.usage.completion_tokens == 18
    again = llm.generate("The Vec type is", params)[0]
    assert again.outputs == output.outputs


def test_a_stream_that_is_cancelled_ends_for_whoever_awaits_it(llm):
    async def cancelled():
        stream = llm.astream("The Vec type is", LONG)

        async def consume():
            return [chunk async for chunk in stream]

        task = asyncio.create_task(consume())
        await asyncio.sleep(0.05)
        stream.cancel()
        await asyncio.wait_for(task, 60)
        return stream.output

    output = asyncio.run(cancelled())
    assert output.finish_reason == "cancelled"
    assert output.usage.completion_tokens == len(output.token_ids)
    assert idle(llm) == 0


def test_progress_is_told_to_coroutines_too(llm):
    told = []
    # Long enough that a loop which gets little time is told more than once.
    long = SamplingParams(max_tokens=600, ignore_eos=True)
    asyncio.run(llm.agenerate("The Vec type is", long, progress=lambda *at: told.append(at)))
    assert len({tokens for _, _, tokens in told}) > 2, told


def test_what_progress_raises_in_a_coroutine_ends_everything(llm):
    def progress(done, total, tokens):
        raise LookupError("enough")

    # The exception is kept, and with it all that was under way.
    with pytest.raises(LookupError, match="enough") as kept:
        asyncio.run(llm.agenerate(PROMPTS, LONG, progress=progress))
    assert idle(llm) == 0 and kept.value


def test_an_error_travels_between_processes(llm):
    with pytest.raises(octavo.GenerationError) as error:
        llm.generate("The Vec type is", SamplingParams(max_tokens=2000, ignore_eos=True, time_limit=0.2))
    again = pickle.loads(pickle.dumps(error.value))
    assert (str(again), again.outputs) == (str(error.value), error.value.outputs)
    usage = again.outputs[0].usage
    assert (usage.prompt_tokens > 0, usage.completion_tokens) == (True, len(again.outputs[0].token_ids))


def test_closing_ends_what_is_held_back_too():
    llm = octavo.LLM(max_waiting=2, max_batch=2)

    def close():
        while not llm.stats()["requests_running"]:
            time.sleep(0.01)
        llm.close(within=0)

    closing = threading.Thread(target=close)
    closing.start()
    with pytest.raises(octavo.GenerationError) as error:
        llm.generate(["The Vec type is"] * 20, LONG)
    closing.join()
    assert len(error.value.outputs) == 20


def test_a_time_limit_fails_that_request_and_keeps_the_others(llm):
    params = [SamplingParams(max_tokens=4000, ignore_eos=True, time_limit=0.02), FEW]
    with pytest.raises(octavo.GenerationError, match="1 of 2 requests failed: not finished within") as error:
        llm.generate(PROMPTS[:2], params)
    outputs = error.value.outputs
    assert outputs[0].error and outputs[1].error is None and outputs[1].text


def test_precisions_and_back_ends_are_options():
    for options in (dict(kv_dtype="int8"), dict(kv_dtype="bf16", page_size=32), dict(kv_backend="contiguous", max_batch=2)):
        with LLM(threads=1, device="cpu", **options) as llm:
            assert "1 thread" in llm.device
            assert "element" in llm.chat([{"role": "user", "content": "What does Vec::push do?"}]).text


def test_a_model_is_loaded_from_a_directory():
    import pathlib

    model = pathlib.Path(__file__).parents[3] / "models" / "demo"
    with LLM(model) as llm:
        assert llm.name == "demo"
        assert "element" in llm.chat([{"role": "user", "content": "What does Vec::push do?"}]).text


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(device="gpu"), "no device"),
        (dict(kv_backend="heap"), "paged or contiguous"),
        (dict(weights="int4"), "stored, f32 or int8"),
        (dict(batching="dynamic"), "continuous or static"),
        (dict(policy="fifo"), "lru, priority or adaptive"),
        (dict(page_size=0), "page_size"),
        (dict(threads=0), "threads"),
        (dict(kv_window=0), "kv_window"),
        (dict(kv_memory=1, num_pages=1), "not both"),
        (dict(max_batch=0), "maximum batch size"),
        (dict(max_len=10**6), "does not fit"),
        (dict(num_pages=1, max_len=1000), "maximum length"),
        (dict(time_limit=-1.0), "time_limit"),
    ],
)
def test_options_that_cannot_work_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        LLM(**options)


def test_other_mistakes_of_options():
    with pytest.raises(TypeError, match="cannot hold"):
        LLM(kv_dtype="int4")
    with pytest.raises(TypeError, match="no_such_option"):
        LLM(no_such_option=1)
    with pytest.raises(TypeError, match="chunk: "):
        LLM(chunk=5)
    with pytest.raises(FileNotFoundError, match="config.json"):
        LLM("/no/such/model")


def test_a_message_is_no_prompt(llm):
    with pytest.raises(TypeError, match="chat"):
        llm.generate({"role": "user", "content": "a"})
    with pytest.raises(TypeError, match="max_tokens: "):
        llm.generate("a", SamplingParams(max_tokens="many"))


def test_coroutines_leave_no_files_open():
    async def use():
        llm = LLM()
        await llm.agenerate("The Vec type is", FEW)
        llm.close()
        del llm
        gc.collect()
        await asyncio.sleep(0.05)

    async def use_some():
        await use()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            await use()
        return len(os.listdir("/proc/self/fd")) - before

    assert asyncio.run(use_some()) == 0


@pytest.mark.parametrize(
    "params, words",
    [
        (dict(temperature=-1), "temperature"),
        (dict(top_p=0), "top_p"),
        (dict(n=0), "choices"),
        (dict(n=2, best_of=1), "best_of"),
        (dict(regex="("), "regular expression"),
        (dict(json_schema="{"), "EOF"),
        (dict(regex="a", choices=["b"]), "one of"),
        (dict(stop=[""]), "stop"),
        (dict(time_limit=-1), "time_limit"),
        (dict(logprobs=100), "logprobs"),
        (dict(prompt_logprobs=100), "prompt_logprobs"),
        (dict(max_tokens=-1), "max_tokens"),
        (dict(json_schema="not json"), "json_schema"),
    ],
)
def test_params_that_cannot_work_are_refused_before_anything_begins(llm, params, words):
    steps = llm.stats()["steps"]
    with pytest.raises(ValueError, match=words):
        llm.generate(["The Vec type is"] * 2, [FEW, SamplingParams(**params)])
    assert llm.stats()["steps"] == steps


@pytest.mark.parametrize("prompt", [5, None, 1.5, b"text", {1: 2}, ["text"], [[5]], [1.5], np.array(5), np.array([1.5])])
def test_what_is_no_prompt_is_said_to_be_none(llm, prompt):
    # Beside a text, so that a number is not taken for one of a list of tokens.
    for use in (lambda: llm.stream(prompt, FEW), lambda: llm.generate(["text", prompt], FEW)):
        with pytest.raises(TypeError, match="a prompt is a text or a list of tokens"):
            use()


def test_arrays_of_tokens_are_prompts_and_come_back_as_numbers(llm):
    tokens = llm.encode("The Vec type is")
    one = llm.generate(np.array(tokens), FEW)[0]
    both = llm.generate(np.array([tokens, tokens], dtype=np.uint16), FEW)
    assert [output.token_ids for output in both] == [one.token_ids] * 2
    assert json.loads(json.dumps(dataclasses.asdict(one)))["prompt_token_ids"] == tokens
    assert llm.decode(np.array(tokens)) == "The Vec type is"


@pytest.mark.parametrize("wrong", ["greedy", {"temperature": 0.0}, 5, [None], [{"temperature": 0.0}]])
def test_what_is_no_params_is_said_to_be_none(llm, wrong):
    for use in (llm.generate, llm.stream):
        with pytest.raises(TypeError, match="params is a SamplingParams"):
            use("The Vec type is", wrong)


@pytest.mark.parametrize(
    "params, words",
    [
        (dict(stop=None), "stop is a text or a list"),
        (dict(stop=[5]), "stop: "),
        (dict(logit_bias=[(5, 1.0)]), "logit_bias is a dict"),
        (dict(stop_token_ids=5), "stop_token_ids is a list"),
        (dict(choices="yes"), "choices is a list of texts"),
    ],
)
def test_params_of_other_types_are_named(llm, params, words):
    with pytest.raises(TypeError, match=words):
        llm.generate("The Vec type is", SamplingParams(**params))


HELLO = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    "arguments, kind, words",
    [
        (dict(messages=None), TypeError, "messages is a list of messages"),
        (dict(messages=HELLO), TypeError, "messages is a list of messages"),
        (dict(messages=["hello"]), TypeError, "messages is a list of messages, .*: one is str"),
        (dict(messages=[]), ValueError, "at least one message"),
        (dict(messages=[{"role": "user", "content": 5}]), ValueError, "content is a text or a list"),
        (dict(messages=[{"role": "user", "content": b"hello"}]), TypeError, "messages: .*bytes"),
        (dict(messages=[{"role": "user", "content": "\ud800"}]), ValueError, "surrogates"),
        (dict(messages=[HELLO], tools="search"), TypeError, "tools is a list of dicts"),
        (dict(messages=[HELLO], tools=[None]), TypeError, "tools is a list of dicts"),
        (dict(messages=[HELLO], template="thinking"), TypeError, "template is a dict"),
        (dict(messages=[HELLO], template={"bias": float("nan")}), ValueError, "template: "),
    ],
)
def test_what_is_no_conversation_is_said_to_be_none(llm, arguments, kind, words):
    with pytest.raises(kind, match=words):
        llm.chat(**arguments)


def test_tokens_that_are_none_have_no_text(llm):
    for wrong in (-1, 2**40, 2**31, 10**6):
        with pytest.raises(ValueError, match=f"there is no token {wrong}"):
            llm.decode([5, wrong])
    for wrong in (5, "text", [1.5]):
        with pytest.raises(TypeError, match="tokens is a list of tokens"):
            llm.decode(wrong)
    with pytest.raises(ValueError, match="there is no token -1"):
        llm.generate([[5, -1]], FEW)


def test_prompts_that_cannot_work_are_refused(llm):
    for prompt, kind in (([], ValueError), ([10**9], ValueError), (list(range(5)) * 1000, ValueError)):
        with pytest.raises(kind):
            llm.generate([prompt], FEW)
    for wrong in ([[1.5]], [None], 7):
        with pytest.raises(TypeError):
            llm.generate(wrong, FEW)
    with pytest.raises((ValueError, OverflowError)):
        llm.generate([[-1]], FEW)
    with pytest.raises(TypeError, match="list of messages"):
        llm.chat("hello")
    with pytest.raises(ValueError, match="role"):
        llm.chat([{"content": "hello"}])
    with pytest.raises(TypeError, match="list of texts"):
        SamplingParams(choices="yes")


def test_params_are_what_they_were_when_they_were_made():
    bias = {5: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[6] = 2.0
    assert params.logit_bias == {5: 1.0}
    assert (params.max_tokens, params.min_tokens, params.n) == (128, 0, 1)


def test_what_comes_out_cannot_be_changed(llm):
    output = llm.generate("The Vec type is", FEW)[0]
    for value, name in [(output, "prompt"), (output.outputs[0], "text"), (output.usage, "prompt_tokens")]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, None)


def test_what_is_otherwise_than_asked_for_is_warned_of():
    with pytest.warns(UserWarning, match="that is the longest it may be"), LLM(num_pages=8) as llm:
        assert llm.max_len == 8 * 16


def test_a_cache_that_does_not_agree_with_itself_is_told(llm):
    class Broken:
        def audit(self):
            return "a page has two owners"

    broken = LLM.__new__(LLM)
    broken._engine = Broken()
    with pytest.raises(RuntimeError, match="two owners"):
        LLM.check(broken)
    llm.check()
