#include "trireme/serve/api/text_stream.h"

#include <algorithm>

namespace trireme::serve::api {
namespace {

/// A model may have more numbers than its tokenizer has tokens: rows that pad the embedding.
bool has_text(const data::Tokenizer* tokenizer, std::int64_t token) {
  const auto id = static_cast<std::int32_t>(token);
  return tokenizer && token >= 0 && token < tokenizer->vocab_size() && !tokenizer->token_bytes(id).empty();
}

}  // namespace

TextStream::TextStream(const data::Tokenizer* tokenizer, std::vector<std::string> stops,
                       const std::vector<std::int64_t>& prompt)
    : tokenizer_(tokenizer), stops_(std::move(stops)) {
  if (tokenizer) decoder_.emplace(*tokenizer);
  for (const std::int64_t id : prompt) {
    if (has_text(tokenizer, id)) decoder_->push(static_cast<std::int32_t>(id));
  }
}

std::string TextStream::push(std::int64_t token) {
  if (stopped_ || !has_text(tokenizer_, token)) return {};
  held_ += decoder_->push(static_cast<std::int32_t>(token));
  return release(false);
}

std::string TextStream::finish() {
  if (stopped_) return {};
  if (decoder_) held_ += decoder_->finish();
  return release(true);
}

std::string TextStream::release(bool end) {
  std::size_t stop = std::string::npos;
  for (const std::string& each : stops_) stop = std::min(stop, held_.find(each));
  if (stop != std::string::npos) {
    stopped_ = true;
    std::string out = held_.substr(0, stop);
    held_.clear();
    return out;
  }
  // The longest end of the text that begins a stop text.
  std::size_t keep = 0;
  for (const std::string& each : stops_) {
    for (std::size_t length = std::min(each.size() - 1, held_.size()); !end && length > keep; --length) {
      if (held_.ends_with(std::string_view(each).substr(0, length))) keep = length;
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

}  // namespace trireme::serve::api
