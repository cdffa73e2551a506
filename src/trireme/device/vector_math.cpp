#include "trireme/device/vector_math.h"

#include <ATen/ops/exp.h>
#include <ATen/ops/ones.h>

namespace trireme::device {
namespace {

bool is_settled = false;

}  // namespace

void settle_vector_math() {
  if (is_settled) return;
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) at::exp(at::ones({1}, type));
  is_settled = true;
}

bool is_vector_math_settled() { return is_settled; }

}  // namespace trireme::device
