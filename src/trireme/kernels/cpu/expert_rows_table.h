// kernels/cpu/expert_rows_table.h -- what the loops of experts' rows take (expert_rows.h, expert_ops.h): pointers to
// contiguous rows. Gates and their gradients are float (double).
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/activation_table.h"

namespace trireme::kernels {

struct TokenSumsLoop {
  const void* from;
  void* to;                   // [tokens, width]
  const std::int64_t* first;  // [tokens + 1]: which of `rows` are each token's
  const std::int64_t* rows;
  std::int64_t width;
};

struct GateRowsLoop {
  void* rows;          // times gates
  const void* before;  // backward: what was multiplied
  const void* gates;
  void* grad_gates;
  std::int64_t width;
};

/// y = gate * f(pre), or gate * f(first half of pre) * second half.
struct ExpertActivationLoop {
  const void* pre;  // [rows, width] or [rows, 2 width]
  const void* gates;
  const void* dy = nullptr;
  void* y = nullptr;  // [rows, width]; backward: may be dy
  void* dpre = nullptr;
  void* dgates = nullptr;
  std::int64_t width = 0;
};

struct ExpertActivationLoops {
  void (*forward)(const ExpertActivationLoop& call, std::int64_t begin_row, std::int64_t end_row);
  void (*backward)(const ExpertActivationLoop& call, std::int64_t begin_row, std::int64_t end_row);
};

struct ExpertRowsTable {
  void (*sum[kElements])(const TokenSumsLoop& call, std::int64_t begin_token, std::int64_t end_token);
  void (*scale[kElements])(const GateRowsLoop& call, std::int64_t begin_row, std::int64_t end_row);
  void (*scale_backward[kElements])(const GateRowsLoop& call, std::int64_t begin_row, std::int64_t end_row);
  ExpertActivationLoops plain[kActivations][kElements], gated[kActivations][kElements];
};
extern const ExpertRowsTable kExpertRowsPlain, kExpertRowsV3, kExpertRowsV4, kExpertRowsV4Bf16;

}  // namespace trireme::kernels
