"""The Hugging Face tokenizers library on one thread: `run ROUNDS` on stdin, one JSON line back. See bench/tokenize.cpp."""
import argparse
import json
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--document-bytes", type=int, required=True)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(options.tokenizer)
    # Cut as bench/tokenize.cpp cuts: at the first newline after so many bytes.
    data, documents, begin = open(options.text, "rb").read(), [], 0
    while begin < len(data):
        end = data.find(b"\n", begin + options.document_bytes)
        end = len(data) if end < 0 else end + 1
        documents.append(data[begin:end].decode())
        begin = end
    # Without offsets, which ours does not give either; some versions lack it.
    batch = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    for line in sys.stdin:
        seconds, tokens, total = [], 0, 0
        for _ in range(int(line.split()[1])):
            start = time.process_time()
            encodings = batch(documents, add_special_tokens=False)
            seconds.append(time.process_time() - start)
            tokens = sum(len(encoding) for encoding in encodings)
            total = 0
            for encoding in encodings:
                for token in encoding.ids:
                    total = (total * 31 + token) % (1 << 61)
        print(json.dumps(dict(seconds=seconds, tokens=tokens, checksum=total)), flush=True)


if __name__ == "__main__":
    main()
