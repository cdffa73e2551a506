// observe/gpu_peak.h -- what makers state of their GPUs: what MFU is a fraction of there.
//
// Published utilisations are fractions of these figures rather than of measured ones: dense products, without sparsity.
// Depends on: base.
#pragma once

#include <optional>
#include <string_view>

#include "trireme/observe/peak_file.h"

namespace trireme::observe {

/// `card` as the driver names it: "NVIDIA H200". `precision`: of the products, "bf16", "fp16" or "fp32". Nothing for
/// cards and precisions that the table does not have.
std::optional<Peak> stated_gpu_peak(std::string_view card, std::string_view precision);

}  // namespace trireme::observe
