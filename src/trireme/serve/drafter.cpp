#include "trireme/serve/drafter.h"

#include <algorithm>

namespace trireme::serve {
namespace {

class NgramDrafter final : public TextDrafter {
 public:
  explicit NgramDrafter(NgramOptions options) : options_(options) {}

  std::size_t depth() const override { return options_.most; }

  std::vector<std::int64_t> continue_text(std::span<const std::int64_t> tokens, std::size_t most) override {
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

std::vector<Drafts> TextDrafter::draft(std::span<const DraftRequest> requests) {
  std::vector<Drafts> out;
  for (const DraftRequest& request : requests) {
    Drafts& drafts = out.emplace_back();
    drafts.tokens = continue_text(request.tokens, std::min(request.most, depth()));
    // It is certain of what it says: q is 1 there.
    for (const std::int64_t token : drafts.tokens) drafts.drawn_from.push_back({{token}, {1.0}});
  }
  return out;
}

std::unique_ptr<TextDrafter> ngram_drafter(NgramOptions options) { return std::make_unique<NgramDrafter>(options); }

void append_draft(std::span<const float> logits, const DraftRequest& request, SpeculationRule rule, Drafts& drafted) {
  if (!can_sample(logits)) return;
  const std::uint64_t number = request.generated + drafted.tokens.size();
  std::vector<float> adjusted;
  std::span<const float> from = logits;
  if (request.sampling->changes_logits()) {
    TokenCounts counts = *request.counts;
    for (const std::int64_t token : drafted.tokens) counts.add_generated(token);
    adjusted.assign(logits.begin(), logits.end());
    adjust(adjusted, *request.sampling, counts);
    from = adjusted;
  }
  if (rule == SpeculationRule::kCoupled) {
    drafted.tokens.push_back(sample(from, *request.sampling, request.draws->noise(number)));
    return;
  }
  drafted.drawn_from.push_back(distribution_of(from, *request.sampling));
  drafted.tokens.push_back(drafted.drawn_from.back().draw(request.draws->draft(number)));
}

}  // namespace trireme::serve
