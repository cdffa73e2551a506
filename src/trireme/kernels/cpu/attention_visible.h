// kernels/cpu/attention_visible.h -- masks as ranges: which keys each query sees.
//
// Causal masks, windows and packed documents each leave a query one run of keys, and so do they together. Depends on:
// base/error.h.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::kernels::cpu {

struct AttentionMask {
  std::int64_t queries = 0, keys = 0;
  bool causal = false;
  std::int64_t window = 0;                            ///< 0: none
  std::int64_t query_position = 0, key_position = 0;  ///< of the first
};

/// Query i sees keys [begin[i], end[i]) where begin < end, and none otherwise.
struct VisibleKeys {
  std::vector<std::int32_t> begin, end;
};

/// Appends one batch row's ranges. `query_documents` and `key_documents` are null, or the documents of that row's
/// tokens; a ConfigError when a document's keys are not neighbours.
void append_visible(VisibleKeys& visible, const AttentionMask& mask, const std::int32_t* query_documents,
                    const std::int32_t* key_documents);

}  // namespace trireme::kernels::cpu
