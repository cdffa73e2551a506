#include "trireme/kernels/kv_codes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <vector>

#include "trireme/base/error.h"
#include "trireme/kernels/fp8_codes.h"

namespace trireme::kernels {
namespace {

std::vector<std::int64_t> in_parts(const at::Tensor& x, std::int64_t part) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() /= part;
  sizes.push_back(part);
  return sizes;
}

}  // namespace

KvCodes to_kv_codes(const at::Tensor& x, std::int64_t part) {
  TRIREME_CHECK(part > 0 && x.size(-1) % part == 0, "parts of {} do not divide entries of {}", part, x.size(-1));
  const at::Tensor parts = x.to(at::kFloat).reshape(in_parts(x, part));
  at::Tensor scales = at::amax(at::abs(parts), {-1}) / fp8_largest(Fp8Format::kE4m3);
  scales = at::where(scales == 0, at::ones_like(scales), scales);
  return {.codes = (parts / scales.unsqueeze(-1)).to(at::kFloat8_e4m3fn).view(at::kByte).view(x.sizes()),
          .scales = scales};
}

at::Tensor from_kv_codes(const KvCodes& from, at::ScalarType type) {
  const at::Tensor codes = from.codes.contiguous();
  const at::Tensor parts =
      codes.view(at::kFloat8_e4m3fn).to(at::kFloat).view(in_parts(codes, codes.size(-1) / from.scales.size(-1)));
  return (parts * from.scales.unsqueeze(-1)).view(codes.sizes()).to(type);
}

}  // namespace trireme::kernels
