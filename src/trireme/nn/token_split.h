// nn/token_split.h -- which tokens of a row a rank has, where several share it (context parallelism).
//
// `outer` ranks take neighbouring stretches; under a causal mask the first of them would have almost nothing to do, so
// the row is cut into 2 outer chunks and rank r takes chunks r and 2 outer - 1 - r (zig-zag). Each such share is cut
// once more into `inner` neighbouring parts, for ranks that trade heads for tokens (Ulysses).
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::nn {

struct Context;

/// Neighbouring columns of a row.
struct TokenStretch {
  std::int64_t first = 0, count = 0;
  bool operator==(const TokenStretch&) const = default;
};
using TokenStretches = std::vector<TokenStretch>;

struct TokenSplit {
  int outer = 1, outer_rank = 0;
  int inner = 1, inner_rank = 0;
  bool zigzag = false;

  int ranks() const { return outer * inner; }
  /// What `length` must be a multiple of.
  std::int64_t grain() const { return std::int64_t{outer} * inner * (zigzag ? 2 : 1); }
  /// The columns of an outer rank's share, in the order it has them; an InternalError where the grain does not divide.
  TokenStretches of_outer(int rank, std::int64_t length) const;
  TokenStretches mine(std::int64_t length) const;
};

/// Of [batch, sequence, ..] whole rows, the columns of these stretches, side by side. Undefined stays undefined.
at::Tensor take_tokens(const at::Tensor& rows, const TokenStretches& stretches);

/// A micro that holds whole rows, `ids` and context, becomes this rank's part of it.
void take_tokens(std::vector<at::Tensor>& ids, Context& context, const TokenSplit& split);

}  // namespace trireme::nn
