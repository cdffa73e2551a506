#include <algorithm>
#include <numeric>

#include "trireme/data/rows.h"

namespace trireme::data {
namespace {

class CausalRows final : public Rows {
 public:
  CausalRows(TokenStream stream, const RowShape& shape) : stream_(std::move(stream)), shape_(shape) {}

  std::int64_t count() const override {
    // The last token of the line is only learnt, never read.
    return (std::max<std::int64_t>(stream_.tokens() - 1, 0) + shape_.length - 1) / shape_.length;
  }

  void fill(std::int64_t row, std::int64_t, Batch& batch, std::int64_t at, TokenStream::Window& window) const override {
    const std::int64_t length = shape_.length, first = row * length;
    const std::int64_t tokens = std::min(length + 1, stream_.tokens() - first);
    stream_.read(first, tokens, shape_.split_texts, window);
    stream_.check_below(shape_.vocab_size, first, window);

    const std::int64_t read = std::min(tokens, length);
    std::copy_n(window.ids.begin(), read, batch.tokens.ids.begin() + at * length);
    std::int64_t* targets = batch.targets.data() + at * length;
    std::copy(window.ids.begin() + 1, window.ids.end(), targets);
    for (std::size_t i = 1; i < window.learnt.size(); ++i) {
      if (window.learnt[i] == 0) targets[i - 1] = kNoTarget;
    }
    for (const std::int64_t begin : window.begins) {
      if (begin > 0) targets[begin - 1] = kNoTarget;  // another text begins: nothing before it says how
    }
    if (shape_.documents) write_documents(window, read, batch, at);
  }

 private:
  void write_documents(const TokenStream::Window& window, std::int64_t read, Batch& batch, std::int64_t at) const {
    std::int64_t* positions = batch.tokens.positions.data() + at * shape_.length;
    std::int32_t* documents = batch.tokens.documents.data() + at * shape_.length;
    const auto pieces = static_cast<std::int32_t>(window.begins.size());
    for (std::int32_t piece = 0; piece <= pieces; ++piece) {  // the last one is the padding
      const auto begin = piece < pieces ? std::min(window.begins[static_cast<std::size_t>(piece)], read) : read;
      const auto end = piece + 1 < pieces ? std::min(window.begins[static_cast<std::size_t>(piece) + 1], read)
                       : piece < pieces   ? read
                                          : shape_.length;
      std::fill(documents + begin, documents + end, piece);
      std::iota(positions + begin, positions + end, std::int64_t{0});
    }
  }

  TokenStream stream_;
  RowShape shape_;
};

}  // namespace

std::unique_ptr<Rows> causal_rows(TokenStream stream, const RowShape& shape) {
  return std::make_unique<CausalRows>(std::move(stream), shape);
}

}  // namespace trireme::data
