#!/usr/bin/env python3
"""Sets `trireme tokenize` beside the Hugging Face tokenizers library: documents whose tokens differ, and the speed of one thread each.

Usage: VENV/bin/python bench/peers/compare_tokenizers.py --text TEXT TOKENIZER.json...

The text is cut into documents of 4 KB at line ends. Ours is the program end to end: JSON lines in, shards out; its start is taken off by
tokenizing the text once and six times. The library's is encode_batch_fast alone. Both are processor time, the best of three. Exit code
1 where a document differs. bench/peers/published_tokenizers.py makes tokenizers of published vocabularies.
"""
import argparse
import array
import json
import os
import pathlib
import resource
import struct
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]


def documents(text, size=4096):
    found, begin = [], 0
    while begin < len(text):
        end = text.find(b"\n", min(begin + size, len(text)))
        end = len(text) if end < 0 else end + 1
        found.append(text[begin:end].decode("utf8", "replace"))
        begin = end
    return found


class Ours:
    def __init__(self, program, tokenizer, texts, folder):
        self.program, self.tokenizer, self.texts, self.folder = program, tokenizer, texts, pathlib.Path(folder)
        self.calls = 0

    def run(self, times):
        """Processor seconds, and the folder with the shard."""
        lines = self.folder / f"{times}.jsonl"
        if not lines.exists():
            lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in self.texts) * times)
        self.calls += 1
        out = self.folder / str(self.calls)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([self.program, "-q", "tokenize", lines, "--tokenizer", self.tokenizer, "--out", out, "--threads", "1",
                               "--shard-size", "1T", "--no-eos", "--no-special"], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, out

    def tokens(self):
        """Of each document: docs/data.md describes the shard."""
        shard = (self.run(1)[1] / "00000.shard").read_bytes()
        token_bytes, = struct.unpack_from("<I", shard, 12)
        tokens, count = struct.unpack_from("<QQ", shard, 32)
        ids = array.array("H" if token_bytes == 2 else "I", shard[256:256 + tokens * token_bytes])
        begins = struct.unpack_from(f"<{count + 1}Q", shard, (256 + tokens * token_bytes + 7) // 8 * 8)
        return [list(ids[begins[i]:begins[i + 1]]) for i in range(count)]

    def seconds(self):
        return (min(self.run(6)[0] for _ in range(3)) - min(self.run(1)[0] for _ in range(3))) / 5


def reference_seconds(tokenizer, texts):
    taken = []
    for _ in range(3):
        begin = time.process_time()
        tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        taken.append(time.process_time() - begin)
    return min(taken)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizers", nargs="+")
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--program", default=str(ROOT / "build" / "release" / "trireme"))
    parser.add_argument("--no-speed", action="store_true")
    options = parser.parse_args()
    texts = [text for text in documents(options.text.read_bytes()) if text]
    megabytes, wrong = options.text.stat().st_size / 1e6, 0
    for path in options.tokenizers:
        reference = Tokenizer.from_file(path)
        with tempfile.TemporaryDirectory() as folder:
            ours = Ours(options.program, path, texts, folder)
            theirs = [encoding.ids for encoding in reference.encode_batch(texts, add_special_tokens=False)]
            differ = sum(a != b for a, b in zip(ours.tokens(), theirs, strict=True))
            wrong += differ
            line = f"{pathlib.Path(path).name}: vocabulary {reference.get_vocab_size()}, {len(texts)} documents, {differ} differ"
            if not options.no_speed:
                mine, other = ours.seconds(), reference_seconds(reference, texts)
                line += f"; {megabytes / mine:.1f} MB/s, Hugging Face {megabytes / other:.2f} MB/s, ratio {other / mine:.1f}"
            print(line, flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
