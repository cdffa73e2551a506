// nn/parallel_context.h -- the ranks that compute one copy of a model together, as its layers see them.
//
// Tensor parallelism (Shoeybi et al. 2019) splits matrices over `tensor`: the first of a pair by its outputs (column),
// the second by its inputs (row), so that a pair needs one sum forward and one backward. With sequence parallelism
// (Korthikanti et al. 2022) what lies between pairs is split by tokens, and each sum becomes a gather before a pair and
// a reduce-scatter after it. Context parallelism splits the tokens themselves: token_split.h.
// Depends on: base, comm, layout, spec.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "trireme/comm/group.h"
#include "trireme/layout/mesh.h"
#include "trireme/layout/placing.h"
#include "trireme/nn/token_split.h"
#include "trireme/spec/layout_config.h"

namespace trireme::nn {

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

  int tensor_ranks() const { return tensor ? tensor->size() : 1; }
  int tensor_rank() const { return tensor ? tensor->rank() : 0; }
  bool splits_sequence() const { return sequence_parallel && tensor_ranks() > 1; }
  /// Tokens of a sequence, as seen between pairs of matrices, for those that attention sees here.
  std::int64_t between(std::int64_t length) const { return splits_sequence() ? length / tensor_ranks() : length; }

  /// A parameter's placement before it is split: whole, on the ranks of this one's pipeline stage.
  layout::Placing placing(const std::string& name, layout::Shape shape) const;
  /// Axes along which copies of a parameter compute equal gradients, where its input is not split by tokens over tp.
  layout::AxisNames equal_between() const { return splits_sequence() ? layout::AxisNames{} : equal_inside(); }
  layout::AxisNames equal_inside() const { return tensor_ranks() > 1 ? layout::AxisNames{"tp"} : layout::AxisNames{}; }
};

/// The team of a rank that works alone.
const ParallelContext& alone();

}  // namespace trireme::nn
