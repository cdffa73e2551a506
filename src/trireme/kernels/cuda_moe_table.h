// kernels/cuda_moe_table.h -- what mixtures of experts ask of a GPU beside the operators of cuda_table.h: routing, the
// order of rows, permute and combine, activations times gates, and their backward passes.
//
// Plain C++, as cuda_table.h: pointers are device memory, every function launches on `stream` and waits for nothing.
// Counts of tokens stay on the GPU; sizes are those of dropless routing, tokens x top_k rows, and known beforehand.
// Routing is computed in double, as on the CPU (nn/moe/router.h), so that both choose the same experts.
// Depends on: cuda_table.h.
#pragma once

#include <cstdint>

#include "trireme/device/cuda_runtime.h"
#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

/// The tokens of a balance group are taken in chunks of so many, each with partial sums of its own.
inline constexpr std::int64_t kCudaRouteChunk = 32;
/// More experts, or more of them for a token, than these go another way.
inline constexpr std::int64_t kCudaMostExperts = 1023, kCudaMostChoices = 32;

/// A router of softmax or sigmoid, dropless: nn/moe/softmax_top_k.cpp and sigmoid_top_k.cpp say what it computes.
struct CudaRouter {
  const void* logits = nullptr;  // float (double) [tokens, experts]
  Element element = Element::kFloat;
  std::int64_t tokens = 0, experts = 0, top_k = 1;
  std::int64_t group_tokens = 1;  // of a balance group; the last may have fewer
  std::int64_t sample_tokens = 1;
  bool sigmoid = false, normalised = true;
  double scaling = 1;
  std::int32_t* chosen = nullptr;  // [tokens, top_k], by falling gate, then by number
  std::int32_t* counts = nullptr;  // [balance groups, experts]: choices of each

  constexpr std::int64_t balance_groups() const { return (tokens + group_tokens - 1) / group_tokens; }
  constexpr std::int64_t group_chunks() const { return (group_tokens + kCudaRouteChunk - 1) / kCudaRouteChunk; }
};

struct CudaRouteForward {
  CudaRouter router;
  const float* bias = nullptr;                                // [experts]: added to what is chosen by; null: none
  std::int64_t groups = 1, top_k_groups = 1, group_best = 2;  // of experts; a group's score is the sum of so many
  void* gates = nullptr;                                      // as the logits, [tokens, top_k]
  double* partial = nullptr;                                  // room for balance groups x chunks x (experts + 1)
  double* room = nullptr;                                     // for balance groups x experts
  double* terms = nullptr;  // [3, 2]: sum and count of the auxiliary loss, of the z-loss, of the largest load
};

struct CudaRouteBackward {
  CudaRouter router;
  const std::int32_t* row_of = nullptr;  // [tokens, top_k]
  const void* grad_gates = nullptr;      // as the logits, [rows]
  void* grad_logits = nullptr;           // [tokens, experts]; null: not wanted
  void* grad_pairs = nullptr;            // bfloat16 [tokens, 2 experts]: rounded, and beside them what that lost; null
  double aux_weight = 0, z_weight = 0;
  double scale = 1;                  // of losses, for each sample
  const void* scale_here = nullptr;  // the same as a number on the GPU, of the logits' type; null: as given
};

/// From choices to rows sorted by (expert, token).
struct CudaRowOrder {
  CudaRouter router;
  const void* gates = nullptr;
  std::int32_t* row_of = nullptr;  // [tokens, top_k]
  void* row_gates = nullptr;       // [rows]
  std::int32_t* ends = nullptr;    // [experts]: where the rows of each end
};

/// Permute: row row_of[t, j] = x[t]. Combine: out[t] = the sum over j of row row_of[t, j], in this order, + add +
/// add_wide, with one rounding. A row of -1 is none.
struct CudaTokenRows {
  const void* from = nullptr;
  void* to = nullptr;
  const std::int32_t* row_of = nullptr;
  std::int64_t tokens = 0, top_k = 1, width = 0;
  const void* add = nullptr;       // [tokens, width], of the rows' type; null: none
  const void* add_wide = nullptr;  // the same in float (double)
};

/// y = gate * f(x), or gate * f(x) * up with x and up side by side in `pre`.
struct CudaExpertActivation {
  const void* pre = nullptr;    // [rows, width], gated: [rows, 2 width]
  const void* gates = nullptr;  // float (double) [rows]
  void* y = nullptr;            // [rows, width]
  std::int64_t rows = 0, width = 0;
  bool gated = true;
  // backward; dpre may be pre, and y may be dy
  const void* dy = nullptr;  // [rows, width]
  void* dpre = nullptr;      // as pre
  void* dgates = nullptr;    // float (double) [rows]
};

/// out[g] (+)= from[g] of groups that have rows; others' numbers in `from` are not read.
struct CudaAddGroups {
  const void* from = nullptr;  // bfloat16 [groups, each]
  void* to = nullptr;          // bfloat16, or float where `wide`
  const std::int32_t* ends = nullptr;
  std::int64_t groups = 0, each = 0;
  bool wide = true, accumulate = false;
};

/// out[g] (+)= a_g^T b_g over the rows of group g: sums in float, rounded once. m and n are multiples of 8.
struct CudaGroupedWeightGrad {
  const void *a = nullptr, *b = nullptr;  // bfloat16 [rows, m] and [rows, n]
  const std::int32_t* ends = nullptr;     // [groups]: where the rows of each end
  void* out = nullptr;                    // bfloat16, or float where `wide`: [groups, m, n]
  std::int64_t groups = 0, m = 0, n = 0;
  bool wide = true, accumulate = false;
};

inline constexpr std::uint32_t kCudaMoeVersion = 2;

struct CudaMoeKernels {
  device::CudaTableHeader header;
  device::CudaError (*route)(const CudaRouteForward&, device::CudaStream);
  device::CudaError (*route_backward)(const CudaRouteBackward&, device::CudaStream);
  device::CudaError (*order_rows)(const CudaRowOrder&, device::CudaStream);
  device::CudaError (*permute)(const CudaTokenRows&, Element, device::CudaStream);
  device::CudaError (*combine)(const CudaTokenRows&, Element, device::CudaStream);
  device::CudaError (*activate)(const CudaExpertActivation&, int kind, Element, device::CudaStream);
  device::CudaError (*activate_backward)(const CudaExpertActivation&, int kind, Element, device::CudaStream);
  device::CudaError (*add_groups)(const CudaAddGroups&, device::CudaStream);
  bool (*has_weight_grad)();  // this GPU
  device::CudaError (*weight_grad)(const CudaGroupedWeightGrad&, device::CudaStream);
};
inline constexpr device::CudaTableHeader kCudaMoeHeader{kCudaMoeVersion, sizeof(CudaMoeKernels)};

extern "C" {
__attribute__((visibility("default"))) const CudaMoeKernels* trireme_cuda_moe_kernels();
}
using CudaMoeEntry = decltype(trireme_cuda_moe_kernels);
inline constexpr const char* kCudaMoeEntry = "trireme_cuda_moe_kernels";

}  // namespace trireme::kernels
