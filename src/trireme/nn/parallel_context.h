// nn/parallel_context.h -- the ranks that compute one copy of a model together, as its layers see them.
//
// Tensor parallelism (Shoeybi et al. 2019) splits matrices over `tensor`: the first of a pair by its outputs (column),
// the second by its inputs (row), so that a pair needs one sum forward and one backward. With sequence parallelism
// (Korthikanti et al. 2022) what lies between pairs is split by tokens, and each sum becomes a gather before a pair and
// a reduce-scatter after it. Context parallelism splits the tokens themselves: TokenSplit. Expert parallelism is
// another factorisation of the ranks along dp and cp: experts are sharded over some of them, whose tokens come to them.
// Depends on: base, comm, layout, spec.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/layout/mesh.h"
#include "trireme/layout/placing.h"
#include "trireme/spec/layout_config.h"

namespace trireme::nn {

struct Context;

/// Axes of the mesh that have a meaning here, as [layout] of a recipe names them.
inline constexpr const char *kTensorAxis = "tp", *kPipelineAxis = "pp", *kContextAxis = "cp", *kDataAxis = "dp";

/// Neighbouring columns of a row.
struct TokenRange {
  std::int64_t first = 0, count = 0;
  bool operator==(const TokenRange&) const = default;
};
using TokenRanges = std::vector<TokenRange>;

/// Which tokens of a row a rank has, where several share it (context parallelism).
///
/// `outer` ranks take neighbouring stretches; under a causal mask the first of them would have almost nothing to do, so
/// the row is cut into 2 outer chunks and rank r takes chunks r and 2 outer - 1 - r (zig-zag). Each such share is cut
/// once more into `inner` neighbouring parts, for ranks that trade heads for tokens (Ulysses).
struct TokenSplit {
  int outer = 1, outer_rank = 0;
  int inner = 1, inner_rank = 0;
  bool zigzag = false;

  int ranks() const { return outer * inner; }
  /// What `length` must be a multiple of.
  std::int64_t grain() const { return std::int64_t{outer} * inner * (zigzag ? 2 : 1); }
  /// The columns of an outer rank's share, in the order it has them; an InternalError where the grain does not divide.
  TokenRanges of_outer(int rank, std::int64_t length) const;
  TokenRanges mine(std::int64_t length) const;
};

/// Of [batch, seq_len, ..] whole rows, the columns of these stretches, side by side. Undefined stays undefined.
at::Tensor take_tokens(const at::Tensor& rows, const TokenRanges& stretches);

/// A micro that holds whole rows, `ids` and context, becomes this rank's part of it.
void take_tokens(std::vector<at::Tensor>& ids, Context& context, const TokenSplit& split);

struct ParallelContext {
  layout::Mesh mesh;              ///< of the whole run; the axes tp, cp, dp, pp where they exist
  int rank = 0;                   ///< in it
  comm::Group* tensor = nullptr;  ///< along tp; null: alone

  bool sequence_parallel = false;
  bool sp_save_gathered = false;  ///< keep a column's gathered input for backward instead of gathering it again
  bool overlap = false;           ///< gathers and reduce-scatters in parts, each beside the GEMM of another

  TokenSplit tokens;             ///< which tokens of a row this rank has
  comm::Group* ring = nullptr;   ///< the outer part of cp: ring or gather
  comm::Group* heads = nullptr;  ///< its inner part: Ulysses
  spec::ContextKind context = spec::ContextKind::kGather;

  comm::Group* experts = nullptr;      ///< the ranks that experts are sharded over; null: each has all of them
  layout::AxisNames expert_axes = {};  ///< along which they lie: (parts of) dp and cp, outermost first

  int tensor_ranks() const { return tensor ? tensor->size() : 1; }
  int tensor_rank() const { return tensor ? tensor->rank() : 0; }
  bool splits_sequence() const { return sequence_parallel && tensor_ranks() > 1; }
  /// Tokens of a sequence, as seen between pairs of matrices, for those that attention sees here.
  std::int64_t local_seq_len(std::int64_t length) const { return splits_sequence() ? length / tensor_ranks() : length; }

  /// A parameter's placement before it is split: whole, on the ranks of this one's pipeline stage.
  layout::Placing placing(const std::string& name, layout::Shape shape) const;
  /// Axes along which copies of a parameter compute equal gradients, where its input is not split by tokens over tp.
  layout::AxisNames equal_grad_axes() const { return splits_sequence() ? layout::AxisNames{} : tensor_axes(); }
  /// Axes whose ranks have tokens of the same samples.
  layout::AxisNames sample_axes() const;
  layout::AxisNames tensor_axes() const {
    return tensor_ranks() > 1 ? layout::AxisNames{kTensorAxis} : layout::AxisNames{};
  }
};

/// Of a rank that works alone.
const ParallelContext& single_rank();

}  // namespace trireme::nn
