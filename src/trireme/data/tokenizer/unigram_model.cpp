#include "trireme/data/tokenizer/unigram_model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/data/tokenizer/decoder.h"
#include "trireme/data/tokenizer/utf8_text.h"

namespace trireme::data {
namespace {

constexpr double kUnknownPenalty = 10.0;

double power_of_ten(int exponent) {
  const std::string text = fmt::format("1e{}", exponent);
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

double score_as_read(double written) {
  if (!std::isfinite(written)) return written;
  char buffer[32];
  const auto made = std::to_chars(buffer, buffer + sizeof(buffer), std::abs(written), std::chars_format::scientific);
  std::uint64_t digits = 0;
  int decimals = 0;  // digits behind the point
  const char* at = buffer;
  for (bool point = false; *at != 'e'; ++at) {
    if (*at == '.') {
      point = true;
      continue;
    }
    digits = digits * 10 + static_cast<std::uint64_t>(*at - '0');
    decimals += point ? 1 : 0;
  }
  int exponent = 0;
  std::from_chars(at + (at[1] == '+' ? 2 : 1), made.ptr, exponent);
  exponent -= decimals;
  auto value = static_cast<double>(digits);
  for (constexpr int kLargest = 308; exponent < -kLargest; exponent += kLargest) value /= power_of_ten(kLargest);
  value = exponent >= 0 ? value * power_of_ten(exponent) : value / power_of_ten(-exponent);
  return std::signbit(written) ? -value : value;
}

UnigramModel::UnigramModel(const UnigramDescription& description)
    : trie_(std::accumulate(description.vocabulary.begin(), description.vocabulary.end(), std::size_t{0},
                            [](std::size_t sum, const auto& token) { return sum + token.first.size(); })),
      scores_(description.scores),
      unk_(description.unk_id.value_or(-1)),
      byte_fallback_(description.byte_fallback) {
  std::fill_n(bytes_, 256, -1);
  for (const auto& [token, id] : description.vocabulary) {
    trie_.insert(token, id);
    if (const auto byte = byte_of_fallback_token(token); byte && fmt::format("<0x{:02X}>", *byte) == token)
      bytes_[*byte] = id;
  }
  for (double& score : scores_) score = score_as_read(score);
  if (!scores_.empty()) unk_score_ = *std::ranges::min_element(scores_) - kUnknownPenalty;
}

void UnigramModel::encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& out) const {
  const bool cached = piece.size() <= WordCache::kMostBytes;
  const std::uint64_t hash = cached ? WordCache::hash(piece) : 0;
  if (cached) {
    if (const auto ids = scratch.cache.find(piece, hash); !ids.empty()) {
      out.insert(out.end(), ids.begin(), ids.end());
      return;
    }
  }
  find_best(piece, scratch.best);
  auto& ids = scratch.ids;
  ids.clear();
  std::size_t unknown_end = 0;  // of the unknown text that is being walked back over; 0: none
  for (std::size_t end = piece.size(); end > 0;) {
    const Scratch::Best& last = scratch.best[end];
    const auto begin = static_cast<std::size_t>(last.begin);
    if (last.id == unk_) {
      if (unknown_end == 0) unknown_end = end;
    } else {
      if (unknown_end != 0) add_unknown(piece.substr(end, unknown_end - end), ids);
      unknown_end = 0;
      ids.push_back(last.id);
    }
    end = begin;
  }
  if (unknown_end != 0) add_unknown(piece.substr(0, unknown_end), ids);
  std::ranges::reverse(ids);
  if (cached) scratch.cache.keep(piece, hash, ids);
  out.insert(out.end(), ids.begin(), ids.end());
}

/// The best way to every place, from left to right. Every character begins where a way ends, known or not.
void UnigramModel::find_best(std::string_view piece, std::vector<Scratch::Best>& best) const {
  best.assign(piece.size() + 1, {});
  for (std::size_t begin = 0; begin < piece.size();) {
    const double here = best[begin].score;
    const std::size_t character = code_point(piece, begin).bytes;
    const auto offer = [&](std::size_t end, double score, std::int32_t id) {
      Scratch::Best& there = best[end];
      if (there.begin < 0 || score > there.score) there = {score, static_cast<std::int64_t>(begin), id};
    };
    bool known = false;
    std::uint32_t node = TokenTrie::kRoot;
    for (std::size_t at = begin; at < piece.size(); ++at) {
      node = trie_.next(node, piece[at]);
      if (node == TokenTrie::kNowhere) break;
      const std::int32_t id = trie_.id(node);
      if (id < 0) continue;
      offer(at + 1, scores_[static_cast<std::size_t>(id)] + here, id);
      known |= at + 1 - begin == character;
    }
    if (!known) {
      if (unk_ < 0)
        throw ConfigError(
            fmt::format("the character U+{:04X} is not in the vocabulary, and the model has no unknown token",
                        code_point(piece, begin).code),
            "use a tokenizer whose model has an unk_id");
      offer(begin + character, unk_score_ + here, unk_);
    }
    begin += character;
  }
}

/// Tokens are wanted from the last to the first.
void UnigramModel::add_unknown(std::string_view text, std::vector<std::int32_t>& reversed) const {
  std::uint32_t node = TokenTrie::kRoot;
  for (std::size_t at = 0; at < text.size() && node != TokenTrie::kNowhere; ++at) node = trie_.next(node, text[at]);
  if (node != TokenTrie::kNowhere && trie_.id(node) >= 0) return reversed.push_back(trie_.id(node));
  const auto fallback = [&](char byte) { return bytes_[static_cast<unsigned char>(byte)]; };
  if (byte_fallback_ && std::ranges::all_of(text, [&](char byte) { return fallback(byte) >= 0; })) {
    for (auto byte = text.rbegin(); byte != text.rend(); ++byte) reversed.push_back(fallback(*byte));
  } else {
    reversed.push_back(unk_);
  }
}

}  // namespace trireme::data
