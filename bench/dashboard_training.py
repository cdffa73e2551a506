#!/usr/bin/env python3
"""dashboard_training.py PROGRAM RECIPE [--pairs N] [--window S] [--instructions]

CPU time of training with and without a live page that watches it, beside the 0.5 % that it may change by. One run trains all the
time while the page's server and a client that follows its events are stopped and continued in turns (SIGSTOP, SIGCONT), so that
what else the machine does slows both alike; each stretch begins and ends with a step of the run, and what is compared is the
process's time on processors (user and system, in nanoseconds) a step, pair by pair. --instructions runs training under valgrind
twice, alone and watched, and compares its instructions: hardly any noise, 50 times slower."""
import argparse
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time


def training_command(program, recipe, out, more):
    return [program, "--quiet", "train", recipe, "--set", "train.threads=1", "--set", "train.hash_every=0", "--set", "eval.every=0", "--out", str(out)] + more


class Page:
    """The server and one client that follows it."""

    def __init__(self, program, runs, work):
        said = open(work / "said", "wb+")
        self.server = subprocess.Popen([program, "--quiet", "dashboard", str(runs), "--port", "0"], stdout=said, stderr=subprocess.DEVNULL)
        while not (found := re.search(rb"http://[^/#\s]+", (work / "said").read_bytes())):
            if self.server.poll() is not None:
                raise SystemExit("the page's server has ended: trireme dashboard says why")
            time.sleep(0.05)
        self.client = subprocess.Popen(["curl", "-sN", found.group().decode() + "/api/events"], stdout=subprocess.DEVNULL)

    def send(self, number):
        for process in (self.server, self.client):
            process.send_signal(number)

    def close(self):
        for process in (self.client, self.server):
            process.kill()
            process.wait()


def time_on_processors(pid):
    """Seconds of all threads, from the scheduler: finer than the clock ticks of /proc/PID/stat."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        total += int(pathlib.Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
    return total / 1e9


class Steps:
    """Of a run, by the lines of its file."""

    def __init__(self, path):
        self.file, self.count = open(path, "rb"), 0

    def read(self):
        self.count += self.file.read().count(b"\n")
        return self.count

    def next(self):
        """Waits for a step to end."""
        before = self.read()
        while self.read() == before:
            time.sleep(0.001)
        return self.count


def seconds(program, recipe, work, pairs, window):
    out = work / "runs" / "measured"
    long = ["--set", "train.steps=1000000", "--set", "lr_schedule.total=1000000", "--set", "checkpoint.every=1000000"]
    training = subprocess.Popen(training_command(program, recipe, out, long), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    page = None
    try:
        while not (out / "metrics.jsonl").exists():
            if training.poll() is not None:
                raise SystemExit("training has ended: trireme train says why")
            time.sleep(0.05)
        steps = Steps(out / "metrics.jsonl")
        page = Page(program, work / "runs", work)
        time.sleep(2)

        def stretch(watched):
            page.send(signal.SIGCONT if watched else signal.SIGSTOP)
            time.sleep(0.05)
            first, begin = steps.next(), time_on_processors(training.pid)
            time.sleep(window)
            last, end = steps.next(), time_on_processors(training.pid)
            return (end - begin) / (last - first)

        order, alone, watched = random.Random(1), [], []
        for _ in range(pairs):
            first = order.random() < 0.5
            for which in (first, not first):
                (watched if which else alone).append(stretch(which))
        return alone, watched
    finally:
        if page:
            page.send(signal.SIGCONT)
            page.close()
        training.kill()
        training.wait()


def instructions(program, recipe, work):
    def count(watched):
        shutil.rmtree(work / "runs", ignore_errors=True)
        (work / "runs").mkdir()
        page = Page(program, work / "runs", work) if watched else None
        counted = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"] + training_command(program, recipe, work / "runs" / "measured", []),
                                 stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, check=True, text=True).stderr
        if page:
            page.close()
        return int(re.search(r"Collected : (\d+)", counted).group(1))

    return count(False), count(True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("recipe", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--pairs", type=int, default=50)
    parser.add_argument("--window", type=float, default=1.0)
    parser.add_argument("--instructions", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "runs").mkdir()
        if options.instructions:
            alone, watched = instructions(options.program, options.recipe, work)
            print(f"instructions of training: {alone} alone, {watched} watched: {100 * (watched / alone - 1):+.4f} %, limit 0.5 %")
            return
        alone, watched = seconds(options.program, options.recipe, work, options.pairs, options.window)
    changes = [100 * (b / a - 1) for a, b in zip(alone, watched)]
    error = statistics.stdev(changes) / len(changes) ** 0.5
    # A difference within twice its standard error says nothing.
    print(f"training, {len(changes)} pairs: {1e3 * statistics.median(alone):.3f} ms of processor time a step alone, {1e3 * statistics.median(watched):.3f} watched: "
          f"{statistics.mean(changes):+.3f} % on average, {statistics.median(changes):+.3f} % in the middle, standard error {error:.3f} %, limit 0.5 %")


if __name__ == "__main__":
    sys.exit(main())
