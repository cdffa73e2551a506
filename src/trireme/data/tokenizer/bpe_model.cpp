#include "trireme/data/tokenizer/bpe_model.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/data/tokenizer/byte_alphabet.h"
#include "trireme/data/tokenizer/utf8_text.h"

namespace trireme::data {
namespace {

/// Up to here the smallest rank is found by looking at all; beyond, a heap keeps them in order.
constexpr std::size_t kShort = 48;

bool is_one_character(std::string_view token) { return !token.empty() && code_point(token, 0).bytes == token.size(); }

}  // namespace

BpeModel::BpeModel(const BpeDescription& description, bool byte_level)
    : byte_level_(byte_level),
      ignore_merges_(description.ignore_merges),
      fuse_unk_(description.fuse_unk),
      byte_fallback_(description.byte_fallback),
      dense_(byte_level ? 0 : kDense),
      merges_(description.merges.size()) {
  std::fill_n(bytes_, 256, -1);
  std::unordered_map<std::string_view, std::int32_t> numbers;
  for (const auto& [token, id] : description.vocabulary) {
    numbers.emplace(token, id);
    if (byte_level_) {
      const auto bytes = letters_to_bytes(token);  // nothing: no piece is ever this token
      if (bytes && bytes->size() == 1) bytes_[static_cast<unsigned char>((*bytes)[0])] = id;
      if (bytes && ignore_merges_) whole_.emplace(*bytes, id);
    } else {
      if (is_one_character(token)) {
        const std::uint32_t code = code_point(token, 0).code;
        (code < kDense ? dense_[code] : letters_[code]).id = id;
      }
      if (ignore_merges_) whole_.emplace(token, id);
    }
  }
  if (description.unk_token) unk_ = numbers.at(*description.unk_token);
  for (std::size_t i = 0; i < description.merges.size(); ++i) {
    const BpeMerge& merge = description.merges[i];
    merges_.insert(merge.left, merge.right, {static_cast<std::int32_t>(i), merge.result});
  }
  if (byte_level_) {
    if (byte_fallback_ && std::ranges::count(bytes_, -1) > 0)
      throw ConfigError("model.byte_fallback: a byte-level vocabulary that lacks bytes cannot fall back to bytes",
                        "set byte_fallback to false");
    return;
  }
  bool every_byte = byte_fallback_;
  for (int byte = 0; byte < 256 && byte_fallback_; ++byte) {
    const auto found = numbers.find(fmt::format("<0x{:02X}>", byte));
    if (found != numbers.end()) bytes_[byte] = found->second;
    every_byte &= found != numbers.end();
  }
  // Where characters can vanish or be fused, what stands beside what is not known before all letters are.
  if (every_byte) find_cuts(description);
}

/// A place between characters x and y is never merged over when no merge has x at the end of its left token and y at
/// the beginning of its right one. For each y with few such x, words end before it.
void BpeModel::find_cuts(const BpeDescription& description) {
  std::vector<std::string_view> tokens;
  for (const auto& [token, id] : description.vocabulary) {
    tokens.resize(std::max(tokens.size(), static_cast<std::size_t>(id) + 1));
    tokens[static_cast<std::size_t>(id)] = token;
  }
  std::map<std::uint32_t, std::vector<std::uint32_t>> joined;  // y -> every x
  for (const BpeMerge& merge : description.merges) {
    // A fallback token that is merged on is no character of the text: then nothing is known.
    if (std::ranges::find(bytes_, merge.left) != std::end(bytes_) ||
        std::ranges::find(bytes_, merge.right) != std::end(bytes_))
      return;
    const std::string_view left = tokens[static_cast<std::size_t>(merge.left)];
    auto& before = joined[code_point(tokens[static_cast<std::size_t>(merge.right)], 0).code];
    const std::uint32_t x = code_point_before(left, left.size()).code;
    if (std::ranges::find(before, x) == before.end() && before.size() < 3) before.push_back(x);
  }
  const auto set = [&](std::uint32_t code, Letter& letter) {
    const auto found = joined.find(code);
    letter.cuts = found == joined.end() || found->second.size() <= std::size(letter.joined);
    if (letter.cuts && found != joined.end()) std::ranges::copy(found->second, letter.joined);
  };
  for (std::uint32_t code = 0; code < kDense; ++code) set(code, dense_[code]);
  for (auto& [code, letter] : letters_) set(code, letter);
  cuts_pieces_ = true;
}

const BpeModel::Letter* BpeModel::letter_of(std::uint32_t code) const {
  if (code < kDense) return &dense_[code];
  const auto found = letters_.find(code);
  return found == letters_.end() ? nullptr : &found->second;
}

std::size_t BpeModel::word_end(std::string_view piece, std::size_t begin) const {
  std::uint32_t before = kNone;
  for (std::size_t at = begin; at < piece.size();) {
    const CodePoint c = code_point(piece, at);
    if (at > begin) {
      const Letter* letter = letter_of(c.code);
      // A character that the vocabulary lacks becomes bytes, which no merge knows.
      if (letter == nullptr || (letter->cuts && letter->joined[0] != before && letter->joined[1] != before)) return at;
    }
    before = c.code;
    at += c.bytes;
  }
  return piece.size();
}

void BpeModel::encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& out) const {
  if (!cuts_pieces_) return encode_word(piece, scratch, out);
  if (ignore_merges_) {
    if (const auto found = whole_.find(std::string(piece)); found != whole_.end()) return out.push_back(found->second);
  }
  for (std::size_t begin = 0; begin < piece.size();) {
    const std::size_t end = word_end(piece, begin);
    encode_word(piece.substr(begin, end - begin), scratch, out);
    begin = end;
  }
}

void BpeModel::encode_word(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& out) const {
  const bool cached = word.size() <= WordCache::kMostBytes;
  const std::uint64_t hash = cached ? WordCache::hash(word) : 0;
  if (cached) {
    if (const auto ids = scratch.cache.find(word, hash); !ids.empty()) {
      out.insert(out.end(), ids.begin(), ids.end());
      return;
    }
  }
  if (ignore_merges_ && !cuts_pieces_) {  // else the whole piece was looked for, not its words
    if (const auto found = whole_.find(std::string(word)); found != whole_.end()) {
      if (cached) scratch.cache.keep(word, hash, {&found->second, 1});
      return out.push_back(found->second);
    }
  }
  auto& letters = scratch.letters;
  letters.clear();
  find_letters(word, letters);
  letters.size() <= kShort ? merge_short(letters, scratch.ranks) : merge_long(scratch);
  if (cached) scratch.cache.keep(word, hash, letters);
  out.insert(out.end(), letters.begin(), letters.end());
}

void BpeModel::find_letters(std::string_view word, std::vector<std::int32_t>& letters) const {
  if (!byte_level_) return find_characters(word, letters);
  bool unknown = false;
  for (const char byte : word) {
    const std::int32_t id = bytes_[static_cast<unsigned char>(byte)];
    if (id >= 0) {
      letters.push_back(id);
    } else if (unk_ >= 0 && !(unknown && fuse_unk_)) {
      letters.push_back(unk_);
    }
    unknown = id < 0;
  }
}

void BpeModel::find_characters(std::string_view word, std::vector<std::int32_t>& letters) const {
  // The library holds an unknown token back until a known character comes; bytes of a fallback pass it by.
  bool held = false;
  const auto release = [&] {
    if (held) letters.push_back(unk_);
    held = false;
  };
  for (std::size_t at = 0; at < word.size();) {
    const CodePoint c = code_point(word, at);
    const std::string_view bytes = word.substr(at, c.bytes);
    at += c.bytes;
    const Letter* letter = letter_of(c.code);
    if (letter != nullptr && letter->id >= 0) {
      release();
      letters.push_back(letter->id);
      continue;
    }
    const auto fallback = [&](char byte) { return bytes_[static_cast<unsigned char>(byte)]; };
    if (byte_fallback_ && std::ranges::all_of(bytes, [&](char byte) { return fallback(byte) >= 0; })) {
      for (const char byte : bytes) letters.push_back(fallback(byte));
    } else if (unk_ >= 0) {
      if (!fuse_unk_) release();
      held = true;
    }
  }
  release();
}

void BpeModel::merge_short(std::vector<std::int32_t>& letters, std::vector<std::int32_t>& ranks) const {
  std::size_t count = letters.size();
  if (count < 2) return;
  ranks.resize(count);
  for (std::size_t i = 0; i + 1 < count; ++i) ranks[i] = merges_.find(letters[i], letters[i + 1]).rank;
  while (count > 1) {
    std::size_t first = 0;
    for (std::size_t i = 1; i + 1 < count; ++i)
      if (ranks[i] < ranks[first]) first = i;
    if (ranks[first] == PairTable::kNever) break;
    letters[first] = merges_.find(letters[first], letters[first + 1]).result;
    const auto drop = [&](std::vector<std::int32_t>& values) {
      std::copy(values.begin() + static_cast<std::ptrdiff_t>(first) + 2,
                values.begin() + static_cast<std::ptrdiff_t>(count),
                values.begin() + static_cast<std::ptrdiff_t>(first) + 1);
    };
    drop(letters);
    drop(ranks);
    --count;
    if (first + 1 < count) ranks[first] = merges_.find(letters[first], letters[first + 1]).rank;
    if (first > 0) ranks[first - 1] = merges_.find(letters[first - 1], letters[first]).rank;
  }
  letters.resize(count);
}

/// A linked list of tokens, and a heap of (rank, place) of pairs; a pair that is no longer there is passed over.
void BpeModel::merge_long(Scratch& scratch) const {
  auto& [cache, letters, ranks, next, before, heap] = scratch;
  const auto count = static_cast<std::int32_t>(letters.size());
  TRIREME_CHECK(letters.size() < std::size_t{1} << 31, "a piece of {} letters", letters.size());
  const auto at = [](auto& values, std::int32_t i) -> auto& { return values[static_cast<std::size_t>(i)]; };
  next.resize(letters.size());
  before.resize(letters.size());
  std::iota(next.begin(), next.end(), 1);
  std::iota(before.begin(), before.end(), -1);
  heap.clear();
  const auto entry = [&](std::int32_t place) {
    const std::int32_t rank = merges_.find(at(letters, place), at(letters, at(next, place))).rank;
    return std::pair(rank != PairTable::kNever,
                     static_cast<std::uint64_t>(rank) << 32 | static_cast<std::uint32_t>(place));
  };
  for (std::int32_t i = 0; i + 1 < count; ++i)
    if (const auto [merges, value] = entry(i); merges) heap.push_back(value);
  std::ranges::make_heap(heap, std::greater());
  const auto push = [&](std::int32_t place) {
    if (const auto [merges, value] = entry(place); merges) {
      heap.push_back(value);
      std::ranges::push_heap(heap, std::greater());
    }
  };
  while (!heap.empty()) {
    std::ranges::pop_heap(heap, std::greater());
    const auto place = static_cast<std::int32_t>(heap.back() & 0xFFFF'FFFF);
    const auto rank = static_cast<std::int32_t>(heap.back() >> 32);
    heap.pop_back();
    if (at(letters, place) < 0 || at(next, place) >= count) continue;
    const std::int32_t right = at(next, place);
    const PairTable::Merge merge = merges_.find(at(letters, place), at(letters, right));
    if (merge.rank != rank) continue;
    at(letters, place) = merge.result;
    at(letters, right) = -1;
    const std::int32_t after = at(next, place) = at(next, right);
    if (after < count) {
      at(before, after) = place;
      push(place);
    }
    if (at(before, place) >= 0) push(at(before, place));
  }
  std::erase(letters, -1);
}

}  // namespace trireme::data
