// data/rows.h -- a source cut into rows: what each loader (causal, masked, pairs) offers, each in a file of its own.
//
// A row's number says which tokens it holds; the sample's number, which differs from epoch to epoch, what is drawn for
// it at random. To add a loader: one class here, one line in open_samples.cpp.
// Depends on: spec, data/batch.h, data/token_stream.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/data/batch.h"
#include "trireme/data/token_stream.h"
#include "trireme/spec/data.h"

namespace trireme::data {

/// What rows of every source of a run have in common.
struct RowShape {
  std::int64_t length = 0;
  std::int64_t source_length = 0;  ///< 0: there is no other side
  bool split_texts = false;        ///< documents in a row do not see each other, and positions restart
  bool documents = false;          ///< whether rows say which tokens see each other
  std::int64_t vocab_size = 0;     ///< tokens are below it
  SpecialTokens special;
};

class Rows {
 public:
  virtual ~Rows() = default;
  virtual std::int64_t count() const = 0;
  /// Writes row `row` as sample `sample` into row `at` of a batch from empty_batch(). By several threads at once, each
  /// with a window of its own.
  virtual void fill(std::int64_t row, std::int64_t sample, Batch& batch, std::int64_t at,
                    TokenStream::Window& window) const = 0;
};

/// Rows of padding, without targets.
Batch empty_batch(std::span<const std::int64_t> samples, const RowShape& shape);

/// Each token from those before it. Row r reads tokens [r length, (r + 1) length) of the line and learns those one
/// further on, so in an epoch every token of a document but its first is learnt once.
std::unique_ptr<Rows> causal_rows(TokenStream stream, const RowShape& shape);

/// Hidden tokens from all others: BERT's masking, drawn anew for each sample. Special tokens are never chosen.
std::unique_ptr<Rows> masked_rows(TokenStream stream, const RowShape& shape, const spec::MaskingConfig& masking,
                                  std::uint64_t seed);

/// A target from its source: one pair of documents a row, cut to the row's lengths. The decoder reads bos and the
/// target, and learns the target and eos.
std::unique_ptr<Rows> pair_rows(std::vector<SharedFile> files, const RowShape& shape, Split split,
                                const SplitRule& rule);

/// Chooses tokens of a row and hides them: ids is changed, targets is set where a token was chosen.
class Masking {
 public:
  Masking(const spec::MaskingConfig& config, std::uint64_t seed, const RowShape& shape);
  /// `learnt`: empty, or 0 where a token is not to be chosen.
  void apply(std::int64_t sample, std::span<std::int64_t> ids, std::span<const std::uint8_t> learnt,
             std::span<std::int64_t> targets) const;

 private:
  bool is_special(std::int64_t id) const;

  spec::MaskingConfig config_;
  Random chosen_, kind_, token_;
  RowShape shape_;
};

}  // namespace trireme::data
