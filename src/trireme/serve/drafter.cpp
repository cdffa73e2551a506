#include "trireme/serve/drafter.h"

#include <algorithm>

namespace trireme::serve {
namespace {

class NgramDrafter final : public Drafter {
 public:
  explicit NgramDrafter(NgramOptions options) : options_(options) {}

  std::size_t depth() const override { return options_.most; }

  std::vector<std::int64_t> draft(std::span<const std::int64_t> tokens, std::size_t most) override {
    most = std::min(most, options_.most);
    if (tokens.size() > options_.lookback) tokens = tokens.last(options_.lookback);
    for (std::size_t length = options_.longest; length >= std::max<std::size_t>(1, options_.least); --length) {
      if (tokens.size() <= length) continue;
      const auto end = tokens.last(length);
      // The latest place counts: it is the likeliest to be what is being repeated.
      for (std::size_t at = tokens.size() - length; at-- > 0;) {
        if (!std::ranges::equal(tokens.subspan(at, length), end)) continue;
        const auto follows = tokens.subspan(at + length);
        return {follows.begin(), follows.begin() + static_cast<std::ptrdiff_t>(std::min(most, follows.size()))};
      }
    }
    return {};
  }

 private:
  NgramOptions options_;
};

}  // namespace

std::unique_ptr<Drafter> ngram_drafter(NgramOptions options) { return std::make_unique<NgramDrafter>(options); }

}  // namespace trireme::serve
