// serve/drafter.h -- who guesses the next tokens of sequences, so that one step of the model verifies several.
//
// With coupled draws a guess decides how fast tokens come, never which: the engine draws every token from the model's
// own logits with the sequence's own noise, and takes drafts only as long as they are those tokens. A drafter that has
// probabilities of its own draws with the same noise, so that where it agrees with the model it guesses right at any
// temperature. With the rejection rule (speculative_sampling.h) tokens are others, from the same distribution.
// draft_model.h and multi_token_drafter.h are drafters with a model.
// Depends on: base, nn/block_table.h, sampler.h, scheduler.h. No tensors but in StepSeen.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trireme/serve/sampler.h"
#include "trireme/serve/scheduler.h"

namespace at {
class Tensor;
}

namespace trireme::serve {

enum class SpeculationRule : std::uint8_t {
  kCoupled,    ///< the very tokens that come without speculation
  kRejection,  ///< accept a draft with min(1, p / q), else draw from max(p - q, 0): the same distribution
};

/// A sequence whose next tokens are to be guessed.
struct DraftRequest {
  RequestId id = 0;
  std::span<const std::int64_t> tokens = {};  ///< prompt and generated ones
  std::size_t most = 0;                       ///< drafts that are of use
  const SamplingParams* sampling = nullptr;
  const TokenCounts* counts = nullptr;
  const Draws* draws = nullptr;
  std::uint64_t generated = 0;  ///< the number that the next token's draw has
};

struct Drafts {
  std::vector<std::int64_t> tokens = {};
  std::vector<Distribution> drawn_from = {};  ///< of each, with the rejection rule
};

/// A step that the engine has taken, for drafters that go on from the model's own activations.
struct StepSeen {
  struct Sequence {
    RequestId id = 0;
    std::int64_t first_row = 0, context_len = 0;
    std::int64_t rows = 0;                      ///< of accepted tokens; rejected drafts' follow
    std::span<const std::int64_t> tokens = {};  ///< with those that the step gave
    std::span<const nn::BlockTable> tables = {};
    bool goes_on = false;  ///< it has a newest token that no step has taken yet
    DraftRequest draft = {};
  };
  std::vector<Sequence> sequences;
  const at::Tensor* hidden = nullptr;  ///< [rows of the step, hidden]: what the head reads
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  /// At most `most` tokens that may follow each sequence; perhaps none.
  virtual std::vector<Drafts> draft(std::span<const DraftRequest> requests) = 0;
  virtual std::size_t depth() const = 0;
  /// The sequence has ended; its number may come again.
  virtual void ended(RequestId) {}
  /// Whether it wants to see every step.
  virtual bool observes() const { return false; }
  virtual void observe(const StepSeen&) {}
};

/// One that looks at a text alone.
class TextDrafter : public Drafter {
 public:
  std::vector<Drafts> draft(std::span<const DraftRequest> requests) final;
  virtual std::vector<std::int64_t> continue_text(std::span<const std::int64_t> tokens, std::size_t most) = 0;
};

struct NgramOptions {
  std::size_t most = 4;                ///< drafts a step
  std::size_t longest = 4, least = 2;  ///< tokens at the end that must have stood before
  std::size_t lookback = 4096;         ///< tokens searched
};
/// Prompt lookup (n-gram speculation): where the last few tokens stood before, what followed them then.
std::unique_ptr<TextDrafter> ngram_drafter(NgramOptions options = {});

/// A draft from a drafter's own logits: coupled, with the noise that the model's token will be drawn with; by the
/// rejection rule, with a number of its own. `drafted` stand between the sequence's tokens and this one, which is
/// appended.
void append_draft(std::span<const float> logits, const DraftRequest& request, SpeculationRule rule, Drafts& drafted);

}  // namespace trireme::serve
