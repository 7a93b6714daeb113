"""A headless Chromium, driven over a pipe by the DevTools protocol. Standard library only.

Everything the page complains about (console errors, exceptions, violated policies, requests to other
servers) is collected in `Tab.complaints`.
"""

import base64
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from urllib.parse import urlsplit

ANSWER_S_MAX = 60
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find():
    """Where the browser is; Debian's is installed if there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        print("installing chromium", flush=True)
        quiet = {"stdout": subprocess.DEVNULL, "env": os.environ | {"DEBIAN_FRONTEND": "noninteractive"}}
        subprocess.run(["apt-get", "update", "-qq"], check=False, **quiet)
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-dejavu-core"], check=False, **quiet)
        found = shutil.which("chromium")
    if found is None:
        sys.exit("there is no browser: install chromium")
    return found


class Browser:
    def __init__(self, *more):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.to_write = os.pipe()
        self.to_hear, to_tell = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync", "--force-color-profile=srgb",
                 f"--user-data-dir={self.profile.name}", "--remote-debugging-pipe", *more]
        # The protocol is spoken on descriptors 3 and 4.
        shell = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_tell}', "browser", find(), *flags]
        self.process = subprocess.Popen(shell, pass_fds=(to_read, to_tell), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_tell)
        self.serial, self.answers, self.tabs = 0, {}, {}
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        with os.fdopen(self.to_hear, "rb", buffering=0) as pipe:
            pending = bytearray()
            while chunk := pipe.read(1 << 20):
                pending += chunk
                *messages, rest = pending.split(b"\0")
                pending = bytearray(rest)
                for message in messages:
                    self.take(json.loads(message))

    def take(self, message):
        if "id" in message:
            self.answers[message["id"]].put(message)
        elif tab := self.tabs.get(message.get("sessionId")):
            tab.heard(message["method"], message["params"])

    def ask(self, method, session=None, **params):
        self.serial += 1
        serial = self.serial
        self.answers[serial] = queue.Queue()
        message = {"id": serial, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self.to_write, json.dumps(message).encode() + b"\0")
        answer = self.answers[serial].get(timeout=ANSWER_S_MAX)
        del self.answers[serial]
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def close(self):
        self.process.terminate()
        self.process.wait(10)
        self.profile.cleanup()


class Tab:
    def __init__(self, browser, origin):
        self.browser, self.origin, self.complaints = browser, origin, []
        # A server that refuses or is gone on purpose; the browser reports such answers as errors.
        self.expects_failures = False
        self.loaded = threading.Event()
        # In a context of its own, so that nothing is left of the test before.
        context = browser.ask("Target.createBrowserContext")["browserContextId"]
        target = browser.ask("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self.session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.target = target
        browser.tabs[self.session] = self
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Page.addScriptToEvaluateOnNewDocument", source=(
            "addEventListener('securitypolicyviolation', (e) => console.error('policy violated: ' + e.violatedDirective + ' ' + e.blockedURI))"))
        self.size(1280, 900)

    def ask(self, method, **params):
        return self.browser.ask(method, self.session, **params)

    def heard(self, method, params):
        match method:
            case "Page.loadEventFired":
                self.loaded.set()
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.complaints.append(details.get("exception", {}).get("description") or details["text"])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(" ".join(str(it.get("value", it.get("description"))) for it in params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                entry = params["entry"]
                if not (entry["source"] == "network" and self.expects_failures):
                    self.complaints.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")
            case "Network.requestWillBeSent":
                url = urlsplit(params["request"]["url"])
                if url.scheme != "data" and f"{url.scheme}://{url.netloc}" != self.origin:
                    self.complaints.append(f"asked another server: {params['request']['url']}")

    def size(self, width, height, scale=1):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)

    def colours(self, scheme):
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url):
        self.loaded.clear()
        # Without a loader it went to another place of the same document.
        if "loaderId" in self.ask("Page.navigate", url=url):
            self.wait_for_load()

    def reload(self):
        self.loaded.clear()
        self.ask("Page.reload")
        self.wait_for_load()

    def wait_for_load(self):
        assert self.loaded.wait(ANSWER_S_MAX), "the page does not load"

    def run(self, script):
        """The value of an expression; promises are waited for."""
        result = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"].get("description"))
        return result["result"].get("value")

    def until(self, script, what, seconds=15):
        """Waits until an expression is true; returns its value."""
        deadline = time.monotonic() + seconds
        while True:
            if value := self.run(script):
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} ({script})\nThe page says:\n{self.text()}")
            time.sleep(0.05)

    def text(self):
        return self.run("document.body.innerText")

    def sees(self, *texts, seconds=15):
        """Waits until all of these are visible."""
        for text in texts:
            self.until(f"document.body.innerText.includes({json.dumps(text)})", f"not seen: {text!r}", seconds)

    def press(self, key, text=None):
        code = {"Tab": 9, "Enter": 13, "Escape": 27, "/": 191}.get(key, 0)
        more = {"text": text or ("\r" if key == "Enter" else "")} if text or key == "Enter" else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **more)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def type(self, text):
        self.ask("Input.insertText", text=text)

    def click(self, selector, index=0):
        """A click with the pointer, in the middle of what is shown there."""
        at = self.until(
            f"(() => {{ const it = document.querySelectorAll({json.dumps(selector)})[{index}]; if (!it) return null;"
            "it.scrollIntoView({block: 'center'}); const b = it.getBoundingClientRect();"
            "return b.width ? [b.x + b.width / 2, b.y + b.height / 2] : null; })()",
            f"nothing to click: {selector}")
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def picture(self, path, whole=True):
        # Two frames, so that what was set last is drawn.
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self):
        self.browser.ask("Target.closeTarget", targetId=self.target)
