"""A load on loopback: serve_load.py URL KEY MODEL PID. Nothing is lost or mixed up, memory is steady, SIGTERM drains."""
import concurrent.futures
import http.client
import json
import os
import resource
import signal
import socket
import sys
import threading
import time

url, key, model, pid = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
host, port = url.removeprefix("http://").split(":")
HEADERS = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}


def ask(number, tokens=16, stream=False):
    """The text, or the status where it is none."""
    connection = http.client.HTTPConnection(host, int(port), timeout=120)
    body = {"model": model, "prompt": f"N {number % 40}", "max_tokens": tokens, "seed": number % 40, "ignore_eos": True,
            "stream": stream, "temperature": 1}
    connection.request("POST", "/v1/completions", json.dumps(body), HEADERS)
    answer = connection.getresponse()
    data = answer.read().decode()
    connection.close()
    if answer.status != 200:
        return answer.status
    if not stream:
        return json.loads(data)["choices"][0]["text"]
    events = [line[6:] for line in data.split("\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events[-2:]
    return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


def resident_kib():
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))


def metric(name):
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    connection.request("GET", "/metrics", headers=HEADERS)
    text = connection.getresponse().read().decode()
    connection.close()
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


expected = [ask(number) for number in range(40)]
assert all(isinstance(text, str) for text in expected), expected


def load(count, clients):
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        for number, text in enumerate(pool.map(lambda i: ask(i, stream=i % 2 == 1), range(count))):
            assert text == expected[number % 40], (number, text, expected[number % 40])


load(200, 32)  # what is allocated once
before = resident_kib()
load(600, 32)
after = resident_kib()
assert after < before * 1.1 + 20000, f"{before} KiB became {after}"

# Raw sockets: half a request, connections that only stand there, and one that goes away in the middle of its answer.
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
                                            resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
idle = [socket.create_connection((host, int(port)), timeout=30) for _ in range(1000)]
half = socket.create_connection((host, int(port)), timeout=10)
half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le")
assert ask(3) == expected[3]
gone = socket.create_connection((host, int(port)), timeout=10)
body = json.dumps({"model": model, "prompt": "A", "max_tokens": 50, "stream": True, "ignore_eos": True})
gone.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
              f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}").encode())
gone.recv(64)
gone.close()
until = time.monotonic() + 20
while metric('trireme_serve_kv_blocks{group="0",state="held"}') > 0:
    assert time.monotonic() < until, "blocks of a client that went away are held"
    time.sleep(0.05)
assert ask(4) == expected[4], "1,000 connections that only stand there keep others waiting"
for connection in idle + [half]:
    connection.close()

# SIGTERM in the middle: what runs is finished, what comes later is sent away, nothing is cut.
answers, sent_away, told = {}, [], []
begun = threading.Semaphore(0)


def client(number):
    begun.release()
    for turn in range(10000):
        asked = time.monotonic()
        try:
            answer = ask(number, stream=turn % 2 == 1)
        except ConnectionError:
            # It does not listen any more; what was under way must not be cut. A connection may still have waited.
            assert told and asked > told[0] - 0.1, "an answer was cut"
            sent_away.append(number)
            return
        if answer == 503:
            sent_away.append(number)
            return
        assert answer == expected[number % 40], (number, answer)
        answers[number, turn] = answer


threads = [threading.Thread(target=client, args=(number,)) for number in range(24)]
failed = []
threading.excepthook = lambda args: failed.append(args.exc_value)
for thread in threads:
    thread.start()
for _ in threads:
    begun.acquire()
time.sleep(0.3)
told.append(time.monotonic())
os.kill(pid, signal.SIGTERM)
for thread in threads:
    thread.join()
assert not failed, failed[0]
assert answers, "nothing was answered before the end"
print(f"{len(answers)} answers beside SIGTERM, {len(sent_away)} clients sent away, memory {before} to {after} KiB")
