"""A headless Chromium driven over its debugging pipe: no package beyond the browser itself."""

import base64
import itertools
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path

HOW_TO_INSTALL = "no Chromium found; install it with: apt-get update && apt-get install -y chromium"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip


def find():
    """Path of the browser, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page. Messages are JSON with a zero byte after each, to the browser's file descriptor 3 and from its 4."""

    def __init__(self, profile: Path):
        read_end, self._out = os.pipe()
        self._in, write_end = os.pipe()
        # File actions run in order: first out of the way of 3 and 4, then onto them.
        actions = [
            (os.POSIX_SPAWN_DUP2, read_end, 100), (os.POSIX_SPAWN_DUP2, write_end, 101),
            (os.POSIX_SPAWN_DUP2, 100, 3), (os.POSIX_SPAWN_DUP2, 101, 4),
            (os.POSIX_SPAWN_CLOSE, 100), (os.POSIX_SPAWN_CLOSE, 101),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]  # fmt: skip
        command = [find(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions, setpgroup=0)
        os.close(read_end)
        os.close(write_end)
        self._numbers, self._buffer, self.events, self._session = itertools.count(1), b"", [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        os.close(self._out)
        os.close(self._in)
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _receive(self, deadline):
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("Chromium did not answer")
            chunk = os.read(self._in, 1 << 20)
            if not chunk:
                raise ConnectionError("Chromium has gone")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method, timeout=60.0, **parameters):
        """A command's result; events that arrive meanwhile are kept."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        payload = json.dumps(message).encode() + b"\0"
        while payload:
            payload = payload[os.write(self._out, payload) :]
        deadline = time.monotonic() + timeout
        while (answer := self._receive(deadline)).get("id") != number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, file: Path, timeout=60.0):
        self.events.clear()
        self.call("Page.navigate", url=file.resolve().as_uri())
        deadline = time.monotonic() + timeout
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive(deadline))

    def run(self, expression):
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def problems(self):
        """Console errors and warnings, uncaught exceptions and log entries since the page was opened."""
        self.run("0")  # whatever was on its way has arrived
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded")
        return [
            event["params"]
            for event in self.events
            if event.get("method") in kinds
            or (event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "warning"))
        ]

    def requests(self):
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def look(self, *, width=1280, height=900, dark=False):
        """Set the window's size and the preferred colours."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, file: Path, *, whole=True):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        file.write_bytes(base64.b64decode(data))

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False, preferCSSPageSize=True)["data"])
