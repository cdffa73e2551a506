// data/token_stream.h -- the tokens of several files, less what the split keeps away, in one line.
//
// Depends on: data/split.h, data/token_file.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trireme/data/split.h"
#include "trireme/data/token_file.h"

namespace trireme::data {

/// A file may be part of several streams and of both splits.
using SharedFile = std::shared_ptr<const TokenFile>;

class TokenStream {
 public:
  TokenStream(std::vector<SharedFile> files, Split split, const SplitRule& rule);

  std::int64_t tokens() const { return tokens_; }

  /// A stretch of the line. Vectors are kept from call to call to spare their allocation.
  struct Window {
    std::vector<std::int32_t> ids;
    std::vector<std::uint8_t> learnt;  ///< empty: all are
    std::vector<std::int64_t> begins;  ///< of pieces within the window: the first is 0. What is not of one text is not
                                       ///< in one piece
  };
  /// Tokens [first, first + count). With `by_document` every document is a piece of its own; otherwise pieces end only
  /// where tokens of the other split were left out and at the ends of files.
  void read(std::int64_t first, std::int64_t count, bool by_document, Window& window) const;

  /// FormatError naming the file and the byte when a token of the window, read from `first` on, is not below
  /// `vocabulary`.
  void check_below(std::int64_t vocabulary, std::int64_t first, const Window& window) const;

 private:
  struct TokenRange {
    std::uint32_t file;
    std::int64_t from;   // token in the file
    std::int64_t begin;  // token in the line
  };
  std::size_t stretch_of(std::int64_t token) const;
  std::int64_t end_of(std::size_t stretch) const;

  std::vector<SharedFile> files_;
  std::vector<TokenRange> stretches_;
  std::int64_t tokens_ = 0;
  bool has_mask_ = false;
};

}  // namespace trireme::data
