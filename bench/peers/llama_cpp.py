#!/usr/bin/env python3
"""The peer of bench/serving_torch: llama.cpp, as the wheel xllamacpp has it, on a model of the same shape with random weights.

Started by the benchmark, which sends "about" or "run PROMPT TOKENS" and gets one line of JSON for each. Needs xllamacpp, gguf
and numpy. What llama.cpp was compiled for is in the answer to "about": a wheel for AVX2 is slower than a native build on a
CPU with AVX-512.
"""
import argparse
import json
import os
import sys
import tempfile
import time

import numpy
from gguf import GGMLQuantizationType, GGUFWriter, quants

SIZES = {  # layers, width, heads, heads of keys, MLP, vocabulary
    "llama-tiny": (2, 256, 4, 2, 512, 512),
    "llama-160m": (12, 768, 12, 4, 2048, 32000),
    "llama-1b": (16, 2048, 32, 8, 8192, 128256),
}
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "BF16": 32}


def vocabulary(size):
    """Bytes as GPT-2 writes them, then words that no text has, then two control tokens."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [byte for byte in range(256) if byte not in plain]
    of_byte = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(other)}
    return [of_byte[byte] for byte in range(256)] + [f"w{i}" for i in range(256, size - 2)] + ["<s>", "</s>"]


def write_model(path, size, kind):
    layers, width, heads, kv_heads, inner, vocab = SIZES[size]
    kind = GGMLQuantizationType[kind.upper()]
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(8192)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_rope_freq_base(500000.0)
    writer.add_vocab_size(vocab)
    writer.add_file_type(FILE_TYPES[kind.name])
    words = vocabulary(vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([1] * (vocab - 2) + [3, 3])
    writer.add_token_merges([f"{words[32]} {words[32]}"])
    writer.add_bos_token_id(vocab - 2)
    writer.add_eos_token_id(vocab - 1)
    writer.add_add_bos_token(False)
    draws = numpy.random.default_rng(1)
    made = {}  # the layers have the same numbers, each with memory of its own: speed does not see it

    def put(name, *shape):
        if shape not in made:
            numbers = draws.standard_normal(shape, dtype=numpy.float32) * numpy.float32(0.02)
            made[shape] = quants.quantize(numbers, kind)
        writer.add_tensor(name, made[shape], raw_dtype=kind)

    put("token_embd.weight", vocab, width)
    writer.add_tensor("output_norm.weight", numpy.ones(width, numpy.float32))
    for layer in range(layers):
        of_keys = width // heads * kv_heads
        for name, shape in {"attn_q": (width, width), "attn_k": (of_keys, width), "attn_v": (of_keys, width),
                            "attn_output": (width, width), "ffn_gate": (inner, width), "ffn_up": (inner, width),
                            "ffn_down": (width, inner)}.items():
            put(f"blk.{layer}.{name}.weight", *shape)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", numpy.ones(width, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SIZES, default="llama-tiny")
    parser.add_argument("--type", default="bf16", help="f32, f16, bf16, q8_0 or q4_0")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library writes to standard output
    import xllamacpp

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        write_model(path, options.model, options.type)
        params = xllamacpp.CommonParams()
        params.model.path = path
        params.n_parallel = 1
        params.n_ctx = 2048
        params.n_batch = params.n_ubatch = 512
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
        params.warmup = True
        server = xllamacpp.Server(params)
        vocab = SIZES[options.model][5]
        draws = numpy.random.default_rng(2)
        for line in sys.stdin:
            words = line.split()
            if not words or words[0] == "quit":
                break
            if words[0] == "about":
                answer = {"peer": "llama.cpp", "type": options.type, "system": xllamacpp.get_system_info(),
                          "build": xllamacpp.BUILD_INFO}
            else:
                prompt, tokens = int(words[1]), int(words[2])
                asked = {"prompt": draws.integers(0, vocab - 2, prompt).tolist(), "n_predict": tokens, "temperature": 0,
                         "cache_prompt": False, "ignore_eos": True}
                began = time.process_time()
                told = server.handle_completions(asked)
                processor = time.process_time() - began
                told = json.loads(told) if isinstance(told, (str, bytes)) else told
                times = told["timings"]
                assert times["prompt_n"] == prompt and times["predicted_n"] == tokens, times
                # The first token comes with the prompt.
                answer = {"prefill_s": times["prompt_ms"] / 1e3, "decode_s": times["predicted_ms"] / 1e3,
                          "processor_s": processor}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


main()
