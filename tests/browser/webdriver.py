"""A browser by WebDriver's own protocol: plain HTTP and JSON to chromedriver, nothing to install but the browser."""
import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    def __init__(self, width, height, dark=False):
        self.home = tempfile.mkdtemp()
        self.driver = subprocess.Popen([shutil.which("chromedriver"), "--port=0"], stdout=subprocess.PIPE, text=True,
                                       stderr=subprocess.DEVNULL, env={**os.environ, "HOME": self.home})
        port = None
        for line in self.driver.stdout:
            if "started successfully on port" in line:
                port = int(line.rstrip(".\n").split()[-1])
                break
        if port is None:
            raise RuntimeError("chromedriver did not start")
        self.base = f"http://127.0.0.1:{port}/session"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     "--no-first-run", "--disable-background-networking", "--disable-component-update",
                     f"--window-size={width},{height}", f"--user-data-dir={self.home}/profile"]
        if dark:
            arguments.append("--force-dark-mode")
        capabilities = {"goog:chromeOptions": {"args": arguments, "binary": shutil.which("chromium")},
                        "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        session = self.ask("", {"capabilities": {"alwaysMatch": capabilities}})
        self.base += "/" + session["sessionId"]
        self.size(width, height)

    def ask(self, path, body=None, method=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data=data, method=method or ("GET" if body is None else "POST"),
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.read().decode(errors='replace')[:600]}") from None

    def size(self, width, height, phone=False):
        """Of the page, whatever the smallest window of a desktop browser is."""
        self.command("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone})

    def command(self, name, parameters):
        return self.ask("/goog/cdp/execute", {"cmd": name, "params": parameters})

    def theme(self, name):
        self.command("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})

    def open(self, url):
        self.ask("/url", {"url": url})

    def script(self, text, *arguments):
        return self.ask("/execute/sync", {"script": text, "args": list(arguments)})

    def wait(self, text, seconds=20, why=None):
        """Until the script is true; gives what it returned."""
        until = time.monotonic() + seconds
        while True:
            value = self.script(text)
            if value:
                return value
            if time.monotonic() > until:
                raise AssertionError(f"did not come true in {seconds} s: {why or text}\n" + self.script("return document.body.innerText")[:1500])
            time.sleep(0.1)

    def click(self, selector):
        element = self.ask("/element", {"using": "css selector", "value": selector})
        self.ask(f"/element/{element[ELEMENT]}/click", {})

    def keys(self, text):
        self.ask("/actions", {"actions": [{"type": "key", "id": "keys", "actions": [
            action for letter in text for action in ({"type": "keyDown", "value": letter}, {"type": "keyUp", "value": letter})]}]})

    def rest(self):
        """The pointer where nothing is: what it is over looks otherwise."""
        self.ask("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [{"type": "pointerMove", "duration": 0, "x": 0, "y": 0}]}]})

    def log(self, kind):
        return self.ask("/se/log", {"type": kind})

    def screenshot(self, path, whole=False):
        options = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            size = self.script("return [document.documentElement.clientWidth, Math.min(document.documentElement.scrollHeight, 2600)]")
            options["clip"] = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.command("Page.captureScreenshot", options)["data"]))

    def close(self):
        try:
            self.ask("", method="DELETE")
        finally:
            self.driver.terminate()
            self.driver.wait(10)
            shutil.rmtree(self.home, ignore_errors=True)
