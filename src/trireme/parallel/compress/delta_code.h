// parallel/compress/delta_code.h -- the mean over copies in 16 or 8 bits an element, with error feedback: DiLoCo's
// pseudo-gradients on their way.
//
// Each copy owns a part: all send theirs of it rounded, the owner adds up in full and sends the mean rounded. What
// either rounding left out is in the residual of the copy that rounded. int8 has a scale for every 512 elements, which
// is NaN where one of them is not finite.
// Depends on: exchange, kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "trireme/parallel/compress/exchange.h"
#include "trireme/spec/compress.h"

namespace trireme::parallel {

inline constexpr std::int64_t kDeltaBlock = 512;

/// Appends the code of values[0 .. count) and leaves in them what it says.
template <typename T>
void encode_delta(T* values, std::int64_t count, spec::DeltaDtype type, Message& message);
template <typename T>
void add_delta(MessageReader& code, std::int64_t count, spec::DeltaDtype type, T* sum);

/// `values` (flat) become their mean over copies; `residual` what was left out, of all copies together N times what the
/// mean lacks. `lengths`: of parameters in them, none of which shares a scale or an owner with another: ranks of a copy
/// that hold the same parameter beside others then round it alike. Not for fp32, which needs neither.
void mean_rounded(CopyExchange& exchange, at::Tensor& values, at::Tensor& residual,
                  std::span<const std::int64_t> lengths, spec::DeltaDtype type);

}  // namespace trireme::parallel
