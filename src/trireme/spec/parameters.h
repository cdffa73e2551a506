// spec/parameters.h -- the parameters of a model of a shape, by name and size, without building it.
//
// For checks of what names them by patterns (train.freeze, optim.groups) and of what needs their sizes (FP8 GEMMs).
// models/assemble.h makes them; a test holds both lists against each other.
// Depends on: model_shape.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/spec/model_shape.h"

namespace trireme::spec {

struct ParameterShape {
  /// The dimension along which tensor parallelism shards it, if any.
  enum class Split : std::uint8_t { kNone, kRows, kColumns };
  std::string name;
  std::int64_t rows = 0, columns = 0;  ///< of vectors: columns 0; of experts: the rows of all of them
  Split split = Split::kNone;
  bool operator==(const ParameterShape&) const = default;
};

/// Whether the GEMMs with this parameter are those that precision.gemm speaks of: matrices of blocks, experts among
/// them. Routers and gates choose by small differences, and keep the precision that they have.
bool takes_gemm_precision(std::string_view name);
/// Each once, in the order of the model.
std::vector<ParameterShape> list_parameters(const ModelShape& shape);
/// Of a matrix on one of `tp` ranks: key and value heads are replicated where there are fewer than ranks.
ParameterShape on_tensor_rank(const ParameterShape& parameter, const ModelShape& shape, int tp);

}  // namespace trireme::spec
