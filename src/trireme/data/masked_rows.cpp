#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/data/rows.h"

namespace trireme::data {
namespace {

class MaskedRows final : public Rows {
 public:
  MaskedRows(TokenStream stream, const RowShape& shape, const spec::MaskingConfig& masking, std::uint64_t seed)
      : stream_(std::move(stream)),
        shape_(shape),
        masking_(masking, seed, shape),
        before_(shape.special.cls >= 0 ? 1 : 0),
        room_(shape.length - before_ - (shape.special.sep >= 0 ? 1 : 0)) {
    if (room_ < 1)
      throw ConfigError(
          fmt::format("data.seq_len = {} leaves no room beside the tokens that begin and end a row", shape.length),
          "set data.seq_len = 128");
  }

  std::int64_t count() const override { return (stream_.tokens() + room_ - 1) / room_; }

  void fill(std::int64_t row, std::int64_t sample, Batch& batch, std::int64_t at,
            TokenStream::Window& window) const override {
    const std::int64_t first = row * room_, tokens = std::min(room_, stream_.tokens() - first);
    stream_.read(first, tokens, shape_.split_texts, window);
    stream_.check_below(shape_.vocab_size, first, window);
    const auto in_row = [&](auto& values) {
      return std::span(values).subspan(static_cast<std::size_t>(at * shape_.length),
                                       static_cast<std::size_t>(shape_.length));
    };
    const auto ids = in_row(batch.tokens.ids);
    const auto text = ids.subspan(static_cast<std::size_t>(before_), static_cast<std::size_t>(tokens));
    std::ranges::copy(window.ids, text.begin());
    masking_.apply(sample, text, window.learnt, in_row(batch.targets).subspan(static_cast<std::size_t>(before_)));
    if (before_ > 0) ids[0] = shape_.special.cls;
    const std::int64_t used = before_ + tokens + (shape_.special.sep >= 0 ? 1 : 0);
    if (shape_.special.sep >= 0) ids[static_cast<std::size_t>(used) - 1] = shape_.special.sep;
    write_documents(window, used, in_row(batch.tokens.documents), in_row(batch.tokens.positions));
  }

 private:
  /// The first token of the row belongs to the first text, the last one to the last; padding is by itself. Everything
  /// is seen both ways here, so padding is told apart in every packing.
  void write_documents(const TokenStream::Window& window, std::int64_t used, std::span<std::int32_t> documents,
                       std::span<std::int64_t> positions) const {
    const std::size_t pieces = window.begins.size();
    for (std::size_t piece = 0; piece <= pieces; ++piece) {
      const std::int64_t begin = piece == 0 ? 0 : piece < pieces ? window.begins[piece] + before_ : used;
      const std::int64_t end = piece == pieces      ? shape_.length
                               : piece + 1 < pieces ? window.begins[piece + 1] + before_
                                                    : used;
      if (!shape_.split_texts && piece < pieces) {
        std::fill(documents.begin() + begin, documents.begin() + end, 0);
        continue;  // positions count through the row, as they came
      }
      std::fill(documents.begin() + begin, documents.begin() + end, static_cast<std::int32_t>(piece));
      std::iota(positions.begin() + begin, positions.begin() + end, std::int64_t{0});
    }
  }

  TokenStream stream_;
  RowShape shape_;
  Masking masking_;
  std::int64_t before_, room_;  // tokens in front of the text, tokens of text
};

}  // namespace

Masking::Masking(const spec::MaskingConfig& config, std::uint64_t seed, const RowShape& shape)
    : config_(config),
      chosen_(seed, "masking/chosen"),
      kind_(seed, "masking/kind"),
      token_(seed, "masking/token"),
      shape_(shape) {
  if (shape.special.mask < 0)
    throw ConfigError("there is no mask token: neither the data nor the recipe names one",
                      "set data.special.mask to the id of the mask token");
}

bool Masking::is_special(std::int64_t id) const {
  const SpecialTokens& special = shape_.special;
  return id == special.cls || id == special.sep || id == special.pad || id == special.mask || id == special.bos ||
         id == special.eos;
}

void Masking::apply(std::int64_t sample, std::span<std::int64_t> ids, std::span<const std::uint8_t> learnt,
                    std::span<std::int64_t> targets) const {
  const std::uint64_t first = static_cast<std::uint64_t>(sample) * static_cast<std::uint64_t>(shape_.length);
  std::vector<float> chosen(ids.size());
  chosen_.fill_uniform(first, std::span(chosen));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (chosen[i] >= config_.probability || is_special(ids[i]) || (!learnt.empty() && learnt[i] == 0)) continue;
    targets[i] = ids[i];
    const double kind = kind_.uniform(first + i);
    if (kind < config_.masked) {
      ids[i] = shape_.special.mask;
    } else if (kind < config_.masked + config_.random) {
      ids[i] = static_cast<std::int64_t>(token_.below(static_cast<std::uint64_t>(shape_.vocab_size), first + i));
    }
  }
}

std::unique_ptr<Rows> masked_rows(TokenStream stream, const RowShape& shape, const spec::MaskingConfig& masking,
                                  std::uint64_t seed) {
  return std::make_unique<MaskedRows>(std::move(stream), shape, masking, seed);
}

}  // namespace trireme::data
