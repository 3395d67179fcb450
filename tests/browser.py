"""Headless Chromium, driven by its DevTools protocol over two pipes."""
import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
KEYS = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39}


class Browser:
    """One page. `requests` are the addresses that it asked for, `said` what it wrote to its console, errors included."""

    def __init__(self, width, height, dark=False):
        self.profile = tempfile.mkdtemp()
        down, up = os.pipe(), os.pipe()  # to the browser, from it

        def connect():  # it reads commands from descriptor 3 and writes to 4
            reading, writing = os.dup(down[0]), os.dup(up[1])
            os.dup2(reading, 3)
            os.dup2(writing, 4)
        self.process = subprocess.Popen(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync",
             "--disable-extensions", "--disable-component-update", "--disable-background-networking", "--hide-scrollbars",
             "--remote-debugging-pipe", f"--user-data-dir={self.profile}", "about:blank"],
            preexec_fn=connect, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(down[0])
        os.close(up[1])
        self.to, self.back = os.fdopen(down[1], "wb", 0), os.fdopen(up[0], "rb")
        self.n, self.session, self.requests, self.said = 0, None, [], []
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.call(domain + ".enable")
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.resize(width, height)

    def read(self):
        data = bytearray()
        while (byte := self.back.read(1)) != b"\0":
            assert byte, "the browser has ended"
            data += byte
        return json.loads(data)

    def call(self, method, **params):
        """The result of a command; meanwhile, events are noted."""
        self.n += 1
        message = {"id": self.n, "method": method, "params": params, **({"sessionId": self.session} if self.session else {})}
        self.to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.n:
                assert "error" not in answer, answer
                return answer["result"]
            self.note(answer.get("method"), answer.get("params", {}))

    def note(self, method, params):
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.consoleAPICalled":
            self.said.append(str([argument.get("value") for argument in params["args"]]))
        elif method == "Runtime.exceptionThrown":
            self.said.append(params["exceptionDetails"].get("exception", {}).get("description") or params["exceptionDetails"]["text"])
        elif method == "Log.entryAdded":
            self.said.append(params["entry"]["text"])

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait(f"location.href.startsWith({url!r}) && document.readyState === 'complete'")
        # What is typed or dropped before the first frame is lost: until a movement of the mouse arrives.
        self.run("document.addEventListener('mousemove', () => { window.isReady = true; }, {once: true})")
        for i in range(200):
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=1 + i % 2, y=1)
            if self.run("window.isReady === true"):
                return
            time.sleep(0.05)
        raise AssertionError("the page takes no input")

    def run(self, script):
        """The value of an expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script, seconds=60):
        end = time.time() + seconds
        while not self.run(f"Boolean({script})"):
            assert time.time() < end, f"never true: {script}"
            time.sleep(0.05)

    def key(self, name, text=None):
        """A key with a name of its own, or a character."""
        code = KEYS.get(name)
        what = {"key": name, "windowsVirtualKeyCode": code or ord(name.upper()), **({"text": text} if text else {})}
        self.call("Input.dispatchKeyEvent", type="keyDown", **what)
        self.call("Input.dispatchKeyEvent", type="keyUp", **what)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def drop(self, path):
        """Drops a file onto the middle of the page."""
        data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=100, y=200, data=data)

    def click(self, script):
        """The middle of the element that the expression gives."""
        x, y = self.run(f"(() => {{ const e = {script}; e.scrollIntoView({{block: 'center'}}); const r = e.getClientRects()[0];"
                        " return [r.x + r.width / 2, r.y + r.height / 2]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path):
        Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.process.kill()
        self.process.wait()
        self.to.close()
        self.back.close()
        shutil.rmtree(self.profile, ignore_errors=True)
