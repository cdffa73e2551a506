#!/usr/bin/env python3
"""What HTTP adds to inference: serving_http.py PROGRAM MODEL [--requests 64] [--tokens 64] [-- OPTIONS OF serve ...]

Starts `PROGRAM serve MODEL --tokenizer bytes` and prints, as lines of JSON: seconds until it is ready; the time to the first
token that a client sees beside the server's own (trireme_serve_first_token_seconds), one request at a time; tokens a second of many
requests at once beside what the same steps would give without pauses between them. The client is this process, on the same
cores as the server.
"""
import argparse
import http.client
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time


def start(program, model, extra):
    begin = time.monotonic()
    process = subprocess.Popen([program, "serve", model, "--tokenizer", "bytes", "--port", "0", "--max-num-seqs", "16", *extra],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in process.stdout:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if found:
            return process, int(found.group(1)), time.monotonic() - begin
    raise SystemExit("the server ended")


def ask(port, prompt, tokens):
    """Seconds until the first event and the end of a stream."""
    body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True,
                       "temperature": 0}).encode()
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n").encode()
    begin = time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head + body)
        first, seen = None, b""
        while piece := connection.recv(1 << 16):
            seen += piece
            if first is None and b"data: " in seen:
                first = time.monotonic() - begin
    assert b" 200 " in seen[:20] and b"[DONE]" in seen, seen[:300]
    return first, time.monotonic() - begin


def metric(port, name):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + " "))


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("program")
parser.add_argument("model")
parser.add_argument("--requests", type=int, default=64)
parser.add_argument("--tokens", type=int, default=64)
parser.add_argument("--turns", type=int, default=3)
parser.add_argument("extra", nargs="*")
options = parser.parse_args()
MODEL = os.path.basename(os.path.normpath(options.model))

process, port, ready = start(options.program, options.model, options.extra)
print(json.dumps({"ready_s": round(ready, 3)}), flush=True)
prompts = [[(7 * i + j) % 90 for j in range(32)] for i in range(options.requests)]
for prompt in prompts[:4]:
    ask(port, prompt, 2)
added, firsts = [], []
for i in range(100):
    before = metric(port, "trireme_serve_first_token_seconds_sum")
    first, _ = ask(port, [(i + 3 * j) % 90 for j in range(16)], 2)
    own = metric(port, "trireme_serve_first_token_seconds_sum") - before
    firsts.append(first)
    added.append(first - own)
print(json.dumps({"ttft_ms": round(statistics.median(firsts) * 1e3, 3),
                  "http_adds_ms": round(statistics.median(added) * 1e3, 3),
                  "quartiles": [round(1e3 * q, 3) for q in statistics.quantiles(added, n=4)]}), flush=True)

with tempfile.TemporaryDirectory() as folder:
    rates = {"http": [], "offline": []}
    for turn in range(options.turns):
        shifted = [[(token + turn + 1) % 90 for token in prompt] for prompt in prompts]
        with open(f"{folder}/in{turn}.jsonl", "w") as file:
            for prompt in shifted:
                file.write(json.dumps({"prompt": prompt, "max_tokens": options.tokens, "ignore_eos": True}) + "\n")
        steps = metric(port, "trireme_serve_step_seconds_sum")
        begin = time.monotonic()
        threads = [threading.Thread(target=ask, args=(port, prompt, options.tokens)) for prompt in shifted]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall = time.monotonic() - begin
        steps = metric(port, "trireme_serve_step_seconds_sum") - steps
        rates["http"].append(options.requests * options.tokens / wall)
        rates["offline"].append(options.requests * options.tokens / steps)
    print(json.dumps({"tokens_per_s": round(statistics.median(rates["http"]), 1),
                      "of_the_engines_steps": round(statistics.median(h / o for h, o in zip(rates["http"], rates["offline"])), 4)}))
process.send_signal(signal.SIGTERM)
process.wait()
