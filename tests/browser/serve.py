"""serve.py URL KEY: what a person would do on the chat page, and see."""
import json
import sys
import urllib.request

from webdriver import Browser

url, key = sys.argv[1:]
TURNS = "return [...document.querySelectorAll('.turn')].map(e => [e.className, e.textContent])"


def metric(name):
    request = urllib.request.Request(url + "/metrics", headers={"Authorization": "Bearer " + key})
    for line in urllib.request.urlopen(request).read().decode().splitlines():
        if line.startswith(name):
            return float(line.split()[-1])
    raise AssertionError(name)


def say(browser, text):
    browser.click("#text")
    browser.keys(text)
    browser.keys("\ue007")  # Enter


def idle(browser):
    return browser.wait("return document.getElementById('send').textContent === 'Send'")


def set_field(browser, field, value):
    browser.script("const e = document.getElementById(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event('change'))",
                   field, value)


def test_chat(browser):
    browser.open(url + "/")
    browser.wait("return document.getElementById('model').textContent.length > 1")
    say(browser, "HELLO")  # without the key
    idle(browser)
    turns = browser.script(TURNS)
    assert turns[0] == ["turn user", "HELLO"] and "error" in turns[1][0], turns

    browser.open(url + "/")
    browser.click("summary")
    set_field(browser, "key", key)
    browser.wait("return document.getElementById('model').textContent === 'tiny'")
    set_field(browser, "temperature", "0")
    set_field(browser, "tokens", "12")
    say(browser, "HELLO")
    browser.wait("return document.querySelectorAll('.turn').length === 2")
    idle(browser)
    first = browser.script(TURNS)
    assert first[0] == ["turn user", "HELLO"] and first[1][0] == "turn assistant", first
    body = {"model": "tiny", "messages": [{"role": "user", "content": "HELLO"}], "temperature": 0, "max_tokens": 12}
    request = urllib.request.Request(url + "/v1/chat/completions", data=json.dumps(body).encode(),
                                     headers={"Authorization": "Bearer " + key, "Content-Type": "application/json"})
    expected = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
    assert first[1][1] == expected, (first[1][1], expected)

    say(browser, "<B>AGAIN</B>")  # shown as it is
    browser.wait("return document.querySelectorAll('.turn').length === 4")
    idle(browser)
    assert browser.script(TURNS)[2] == ["turn user", "<B>AGAIN</B>"]
    assert browser.script("return document.querySelectorAll('#log b').length") == 0
    width = browser.script("return [document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1], f"scrolls sideways: {width}"
    loaded = browser.script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert all(name.startswith(url) for name in loaded), loaded
    assert metric('trireme_serve_kv_blocks{group="0",state="held"}') == 0
    errors = [line for line in browser.log("browser") if line["level"] == "SEVERE" and "401" not in line["message"] and "favicon" not in line["message"]]
    assert not errors, errors


for width, height in ((1280, 800), (390, 844)):
    browser = Browser(width, height)
    try:
        browser.size(width, height, phone=width < 500)
        test_chat(browser)
    finally:
        browser.close()
print("the chat page is fine")
