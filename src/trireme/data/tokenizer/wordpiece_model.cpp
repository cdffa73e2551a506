#include "trireme/data/tokenizer/wordpiece_model.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

std::size_t vocabulary_bytes(const Vocabulary& vocabulary) {
  std::size_t bytes = 0;
  for (const auto& [token, id] : vocabulary) bytes += token.size();
  return bytes;
}

std::size_t character_count(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }));
}

}  // namespace

WordPieceModel::WordPieceModel(const WordPieceDescription& description)
    : begins_(vocabulary_bytes(description.vocabulary)),
      continues_(vocabulary_bytes(description.vocabulary)),
      most_characters_(static_cast<std::size_t>(description.max_input_chars_per_word)) {
  const std::string& prefix = description.continuing_subword_prefix;
  for (const auto& [token, id] : description.vocabulary) {
    begins_.insert(token, id);  // "##" may begin a word too, where nothing has cut it
    if (token.starts_with(prefix)) continues_.insert(std::string_view(token).substr(prefix.size()), id);
    if (token == description.unk_token) unk_ = id;
  }
  if (unk_ < 0)
    throw ConfigError(fmt::format("model.unk_token: \"{}\" is not in the vocabulary", description.unk_token));
}

void WordPieceModel::encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& out) const {
  const bool cached = word.size() <= WordCache::kMostBytes;
  const std::uint64_t hash = cached ? WordCache::hash(word) : 0;
  if (cached) {
    if (const auto ids = scratch.cache.find(word, hash); !ids.empty()) {
      out.insert(out.end(), ids.begin(), ids.end());
      return;
    }
  }
  scratch.ids.clear();
  find_pieces(word, scratch.ids);
  if (cached) scratch.cache.keep(word, hash, scratch.ids);
  out.insert(out.end(), scratch.ids.begin(), scratch.ids.end());
}

void WordPieceModel::find_pieces(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (character_count(word) > most_characters_) return ids.push_back(unk_);
  for (std::size_t at = 0; at < word.size();) {
    const TokenTrie::Longest piece = (at == 0 ? begins_ : continues_).longest(word.substr(at));
    if (piece.bytes == 0) return ids.assign(1, unk_);
    ids.push_back(piece.id);
    at += piece.bytes;
  }
}

}  // namespace trireme::data
