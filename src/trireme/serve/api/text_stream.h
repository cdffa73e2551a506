// serve/api/text_stream.h -- tokens become text as they come: whole characters only, and never a part of a stop text.
//
//   TextStream stream(&tokenizer, {"\n\n"});
//   send(stream.push(token));            // perhaps nothing yet
//   if (stream.stopped()) ...            // a stop text was completed; it is not part of the text
//   send(stream.finish());               // what was held back
// Depends on: data/tokenizer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/data/tokenizer/tokenizer.h"

namespace trireme::serve::api {

class TextStream {
 public:
  /// Borrows the tokenizer; null: tokens have no text. `prompt`: what the text follows, for tokenizers whose first
  /// token loses a blank.
  TextStream(const data::Tokenizer* tokenizer, std::vector<std::string> stops,
             const std::vector<std::int64_t>& prompt = {});

  /// The text that is certain now. After a stop text nothing comes any more.
  std::string push(std::int64_t token);
  /// All that is left, when no token will follow.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  /// Of the held text, what no stop text can begin in; all where `end`.
  std::string release(bool end);

  const data::Tokenizer* tokenizer_;
  std::optional<data::StreamDecoder> decoder_;
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace trireme::serve::api
