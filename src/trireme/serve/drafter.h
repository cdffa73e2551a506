// serve/drafter.h -- who guesses the next tokens of a sequence, so that one step of the model verifies several.
//
// A guess decides how fast tokens come, never which: the engine draws every token from the model's own logits with the
// sequence's own draw, and takes drafts only as long as they are those tokens.
// Depends on: base. No tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace trireme::serve {

class Drafter {
 public:
  virtual ~Drafter() = default;
  /// At most `most` tokens that may follow `tokens`, prompt and generated ones of a sequence.
  virtual std::vector<std::int64_t> draft(std::span<const std::int64_t> tokens, std::size_t most) = 0;
  virtual std::size_t depth() const = 0;
};

struct NgramOptions {
  std::size_t most = 4;                ///< drafts a step
  std::size_t longest = 4, least = 2;  ///< tokens at the end that must have stood before
  std::size_t lookback = 4096;         ///< tokens searched
};
/// Prompt lookup (n-gram speculation): where the last few tokens stood before, what followed them then.
std::unique_ptr<Drafter> ngram_drafter(NgramOptions options = {});

}  // namespace trireme::serve
