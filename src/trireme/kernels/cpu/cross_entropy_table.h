// kernels/cpu/cross_entropy_table.h -- what the loop of cross_entropy.h takes: pointers and strides, in elements.
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

struct CrossEntropyLoop {
  void* logits;
  const std::int64_t* targets;
  const void* scale;              // null: no gradient
  void *losses, *z_losses, *lse;  // the last two may be null
  std::int64_t stride, vocabulary, ignore;
  double label_smoothing, z_loss;
};

/// A slice of the classes: what its rows add to the whole, and its gradient once the whole is known.
struct CrossEntropySlice {
  void* logits;
  const std::int64_t* targets;  // in the slice; outside [0, classes): elsewhere
  const void* scale;            // of gradients, 0: no part
  void *lse, *hits, *sums;      // per row: of the slice (values), of all classes (gradients, which reads lse only)
  std::int64_t stride, classes, vocabulary;
  double label_smoothing, z_loss;
};

struct CrossEntropyTable {
  void (*rows[kElements])(const CrossEntropyLoop& call, std::int64_t begin_row, std::int64_t end_row);
  void (*slice_values[kElements])(const CrossEntropySlice& call, std::int64_t begin_row, std::int64_t end_row);
  void (*slice_gradients[kElements])(const CrossEntropySlice& call, std::int64_t begin_row, std::int64_t end_row);
};
extern const CrossEntropyTable kCrossEntropyPlain, kCrossEntropyV3, kCrossEntropyV4, kCrossEntropyV4Bf16;

}  // namespace trireme::kernels
