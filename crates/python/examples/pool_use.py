"""What the pages of a KV cache do while a burst of requests passes through.

    python crates/python/examples/pool_use.py docs/pool-use.png

Three waves of requests with a common beginning meet a pool too small for all of them at once. The picture shows pages
in use, pages kept for their prefixes, and free ones, and below them the requests that run and wait. Needs matplotlib.
"""

import argparse
import random
import threading
import time

import octavo

RULES = "You answer questions about the Rust standard library. Be exact, name the types, and keep it short. " * 3
SUBJECTS = ["Vec", "String", "HashMap", "Option", "Result", "Box", "Rc", "Arc", "Iterator", "slice"]


def requests(count, seed=1):
    """Prompts with a common beginning, and answers of different lengths."""
    draw = random.Random(seed)
    prompts = [f"{RULES}Question {i}: what is {draw.choice(SUBJECTS)} for?" for i in range(count)]
    params = [octavo.SamplingParams(max_tokens=draw.randrange(40, 300), ignore_eos=True) for _ in range(count)]
    return prompts, params


def measure(llm, waves, pause):
    """Sends waves of requests; returns the engine's stats over time."""
    samples, over, begin = [], threading.Event(), time.perf_counter()

    def watch():
        while not over.wait(0.002):
            samples.append({"time": time.perf_counter() - begin, **llm.stats()})

    def send(wave):
        time.sleep(pause * wave)
        llm.generate(*requests(waves[wave], seed=wave))

    watcher = threading.Thread(target=watch)
    senders = [threading.Thread(target=send, args=(wave,)) for wave in range(len(waves))]
    watcher.start()
    [sender.start() for sender in senders]
    [sender.join() for sender in senders]
    time.sleep(0.1)
    over.set()
    watcher.join()
    return samples


def plot(samples, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    times = [sample["time"] for sample in samples]
    series = {
        name: [sample[f"{name}_blocks"] for sample in samples] for name in ("used", "cached", "reserved", "free")
    }
    colours = ["#2b6cb0", "#90cdf4", "#a0aec0", "#e2e8f0"]
    labels = ["in use", "kept for their prefix", "reserved for those that run", "free"]
    figure, (pages, load) = plt.subplots(
        2, 1, figsize=(8, 4.6), sharex=True, height_ratios=[2.4, 1], constrained_layout=True
    )
    pages.stackplot(times, *series.values(), colors=colours, labels=labels, linewidth=0)
    pages.set(ylabel="pages", ylim=(0, samples[0]["total_blocks"]), title="A burst of requests in a small pool")
    pages.legend(loc="upper left", fontsize=8, framealpha=0.9)
    load.plot(times, [s["requests_running"] for s in samples], color="#2b6cb0", label="running")
    load.plot(times, [s["requests_waiting"] for s in samples], color="#dd6b20", label="waiting")
    load.set(xlabel="seconds", ylabel="requests", xlim=(times[0], times[-1]), ylim=(0, None))
    load.legend(loc="upper right", fontsize=8)
    for axis in (pages, load):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", help="where it goes: a file that ends in .svg or .png")
    parser.add_argument("--waves", type=int, nargs="+", default=[24, 40, 16], help="requests of each")
    parser.add_argument("--pause", type=float, default=0.7, help="seconds between them")
    parser.add_argument("--pages", type=int, default=320, help="pages in the pool")
    options = parser.parse_args()
    with octavo.LLM(device="cpu", num_pages=options.pages, max_batch=32, max_len=1024) as llm:
        samples = measure(llm, options.waves, options.pause)
        plot(samples, options.picture)
        stats = llm.stats()
    print(
        f"{sum(options.waves)} requests, {stats['generation_tokens']} tokens in {samples[-1]['time']:.1f} s; "
        f"at most {stats['peak_blocks']} of {stats['total_blocks']} pages in use, "
        f"{stats['hit_rate']:.0%} of the prompts found in the cache, {stats['evicted_blocks']} pages evicted, "
        f"{stats['preemptions']} preemptions"
    )


if __name__ == "__main__":
    main()
