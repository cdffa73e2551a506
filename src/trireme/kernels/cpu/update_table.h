// kernels/cpu/update_table.h -- what the loops of update.h take: pointers, element types and numbers.
//
// Types are looked at inside the loops. A branch that always goes the same way costs nothing beside the memory that an
// update waits for, and one loop serves all mixtures of types.
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

struct Stream {
  void* data = nullptr;  // null: there is none
  Element element = Element::kFloat;
};

struct UpdateLoop {
  Stream weight, gradient, low, first, second, update;  // first moment or velocity; second moment or sum
  double gradient_scale;
  bool zero_gradient;
  const void* device_scalars =
      nullptr;  // GPU: a CudaStepScalars in device memory, in place of the numbers given; null: none
};

struct SgdNumbers {
  double rate, decay, momentum, undamped;  // undamped: 1 - dampening
  bool nesterov, start;
};
struct AdagradNumbers {
  double rate, decay, epsilon;
};
struct AdamNumbers {
  double decay, take1, take2, epsilon;  // take: 1 - beta
  double rate;                          // learning rate / (1 - beta1^step)
  double root;                          // 1 / sqrt(1 - beta2^step)
  double weight_decay;                  // learning rate * decay when decoupled, else 0
  std::uint64_t rounding;               // 0: to nearest; otherwise bfloat16s are stochastically rounded: rounding.h
};
struct LarsNumbers {
  double rate, decay, momentum;
};

/// Every loop covers the elements [begin, end). `rounding`: as AdamNumbers has it, of the weight.
struct UpdateLoops {
  void (*sgd)(const UpdateLoop&, const SgdNumbers&, std::uint64_t rounding, std::int64_t begin, std::int64_t end);
  void (*adagrad)(const UpdateLoop&, const AdagradNumbers&, std::uint64_t rounding, std::int64_t begin,
                  std::int64_t end);
  void (*adam)(const UpdateLoop&, const AdamNumbers&, std::int64_t begin, std::int64_t end);
  /// squares[0] and [1]: of weight and update.
  void (*lamb)(const UpdateLoop&, const AdamNumbers&, std::int64_t begin, std::int64_t end, double* squares);
  void (*apply)(const UpdateLoop&, double rate, std::uint64_t rounding, std::int64_t begin, std::int64_t end);
  void (*lars)(const UpdateLoop&, const LarsNumbers&, std::uint64_t rounding, std::int64_t begin, std::int64_t end);
  double (*squares)(const Stream&, std::int64_t begin, std::int64_t end);
};
struct UpdateTable {
  UpdateLoops floats, doubles;
};
extern const UpdateTable kUpdatePlain, kUpdateV3, kUpdateV4, kUpdateV4Bf16;

}  // namespace trireme::kernels
