"""The real binary, started for a test and asked over HTTP."""

import os
import re
import signal
import subprocess
import tempfile
import time

import httpx
import openai

BINARY = os.environ.get("OCTAVO_BIN", "target/release/octavo")

# How long anything may take before a test gives up on it. No test passes or fails by how fast it was.
PATIENCE = 120.0


def wait_until(condition, what):
    """Asks again and again until `condition` returns something true, and returns that."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{what}: not so after {PATIENCE:.0f} s")


class Server:
    """`octavo serve` on a free port, with these options."""

    def __init__(self, *options):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [BINARY, "serve", "--port", "0", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")},
        )
        self.greeting = self.process.stdout.readline()
        address = re.search(r" on (http://\S+) ", self.greeting)
        assert address, f"no greeting from {options}: {self.greeting!r} {self.errors()}"
        self.url = address.group(1)
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE)

    def errors(self):
        """What it logged so far."""
        self.log.seek(0)
        return self.log.read()

    def openai(self, **options):
        return openai.OpenAI(**self.options(options))

    def async_openai(self, **options):
        return openai.AsyncOpenAI(**self.options(options))

    def options(self, given):
        """A client of this server. It does not try again, so that a test sees every answer."""
        return {"base_url": f"{self.url}/v1", "api_key": "unused", "max_retries": 0, "timeout": PATIENCE} | given

    def get(self, path):
        return self.http.get(path)

    def post(self, path, **body):
        return self.http.post(path, json=body)

    def cache(self):
        return self.get("/v1/cache").raise_for_status().json()

    def pages(self):
        """The four numbers and their sum, which is checked."""
        pages = self.cache()["pages"]
        assert pages["used"] + pages["cached"] + pages["reserved"] + pages["free"] == pages["total"], pages
        return pages

    def metric(self, name):
        """The sum of all samples of this name, whatever their labels."""
        samples = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)", self.get("/metrics").text, re.MULTILINE)
        assert samples, f"no metric {name}"
        return sum(float(sample) for sample in samples)

    def wait_until_idle(self):
        """Nothing runs, nothing waits, no page is used, and the cache agrees with itself."""
        wait_until(lambda: not (cache := self.cache())["sequences"] and not cache["waiting"], "all have ended")
        wait_until(lambda: self.pages()["used"] == 0, "every page was given back")
        health = self.get("/health").json()
        assert health["status"] == "ok" and health["last_audit"]["ok"], health

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def exit_code(self):
        """Waits for the end."""
        code = self.process.wait(PATIENCE)
        self.http.close()
        return code

    def stop(self):
        """Ends it as a service manager does. It must end well."""
        if self.process.poll() is None:
            self.signal()
        code = self.exit_code()
        log = self.errors()
        self.log.close()
        self.process.stdout.close()
        assert code == 0, f"exit code {code}: {log}"
        assert "panicked" not in log, log

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
