#include "trireme/kernels/invariant_gemm.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <vector>

#include "trireme/kernels/arguments.h"
#include "trireme/kernels/cpu/invariant_gemm_table.h"
#include "trireme/kernels/cpu/pick.h"

namespace trireme::kernels {
namespace {

constexpr Compiled<InvariantGemmTable> kCompiledInvariantGemm{kInvariantGemmPlain, kInvariantGemmV3, kInvariantGemmV4,
                                                              kInvariantGemmV4Bf16};
constexpr std::int64_t kColumnsAtOnce = 4;
constexpr std::int64_t kMultipliesWorthAThread = 65536;

struct Multiplied {
  at::Tensor x;  ///< as the loop wants it
  Element element = Element::kFloat;
  InvariantGemmLoop loop = {};
  std::int64_t columns = 0;
};

Multiplied prepare(const Arguments& arguments, at::Tensor& out, const at::Tensor& x, std::int64_t n, std::int64_t k,
                   const at::Tensor& bias) {
  const Rows in = arguments.rows(x, "x"), to = arguments.rows(out, "out");
  if (arguments.on_gpu()) arguments.refuse("runs on the CPU, but the tensors are on a GPU");
  if (x.dim() != 2 || out.dim() != 2 || in.width != k || to.rows != in.rows || to.width != n ||
      to.element != in.element) {
    arguments.refuse(
        fmt::format("{} and {} do not fit a weight of {} x {}", describe(x, "x"), describe(out, "out"), n, k));
  }
  if (bias.defined() && (bias.numel() != n || !bias.is_contiguous() || arguments.element(bias, "bias") != in.element)) {
    arguments.refuse(fmt::format("{} must be {} elements of x's type", describe(bias, "bias"), n));
  }
  Multiplied out_call{.element = in.element, .columns = n};
  out_call.loop = {.x = nullptr,
                   .weight = nullptr,
                   .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
                   .out = to.data,
                   .x_stride = 0,
                   .weight_stride = 0,
                   .out_stride = to.stride,
                   .m = in.rows,
                   .k = k,
                   .scratch = gemm_scratch};
  return out_call;
}

void give_x(Multiplied& call, at::Tensor x) {
  call.x = std::move(x);
  call.loop.x = call.x.const_data_ptr();
  call.loop.x_stride = call.x.stride(0);
}
/// In the type of the sums.
void give_sums_x(Multiplied& call, const at::Tensor& x) {
  give_x(call, x.to(call.element == Element::kDouble ? at::kDouble : at::kFloat));
}

/// As the loop wants it whose table says so.
void give_x(Multiplied& call, const at::Tensor& x, bool as_it_is) { as_it_is ? give_x(call, x) : give_sums_x(call, x); }

/// x [m, k], of each chunk the first number of every `places`, then the second ...
at::Tensor arranged(const at::Tensor& x, const InvariantGemmTable::Arrangement& how) {
  const at::Tensor places =
      x.contiguous().view({x.size(0), x.size(1) / how.chunk, how.chunk / how.places, how.places}).transpose(2, 3);
  return (how.takes_element ? places : places.to(at::kFloat)).contiguous().view({x.size(0), x.size(1)});
}
bool takes_arranged(const InvariantGemmTable::Arrangement& how, const QuantisedWeight& weight) {
  return weight.format == WeightFormat::kInt4 && how.chunk > 0 && weight.columns % how.chunk == 0 &&
         (weight.group % how.chunk == 0 || (how.chunk % weight.group == 0 && weight.group % 8 == 0));
}

void run(const Multiplied& call, InvariantGemmFunction multiply) {
  if (call.loop.m == 0 || call.columns == 0) return;
  const std::int64_t tiles = (call.columns + kColumnsAtOnce - 1) / kColumnsAtOnce;
  const std::int64_t work = std::max<std::int64_t>(1, kColumnsAtOnce * call.loop.m * call.loop.k);
  at::parallel_for(0, tiles, std::max<std::int64_t>(1, kMultipliesWorthAThread / work),
                   [&](std::int64_t begin, std::int64_t end) {
                     multiply(call.loop, begin * kColumnsAtOnce, std::min(end * kColumnsAtOnce, call.columns));
                   });
}

}  // namespace

void* gemm_scratch(std::int64_t bytes) {
  thread_local std::vector<char> room;
  if (room.size() < static_cast<std::size_t>(bytes) + 64) room.resize(static_cast<std::size_t>(bytes) + 64);
  const auto at = reinterpret_cast<std::uintptr_t>(room.data());
  return reinterpret_cast<void*>((at + 63) / 64 * 64);
}

void invariant_gemm(at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const Arguments arguments("invariant_gemm");
  const Rows of = arguments.rows(weight, "weight");
  if (weight.dim() != 2) arguments.refuse(fmt::format("{} must be [n, k]", describe(weight, "weight")));
  Multiplied call = prepare(arguments, out, x, of.rows, of.width, bias);
  if (of.element != call.element) {
    arguments.refuse(fmt::format("{} and {} have different types", describe(weight, "weight"), describe(x, "x")));
  }
  call.loop.weight = of.data;
  call.loop.weight_stride = of.stride;
  const InvariantGemmTable& table = kCompiledInvariantGemm.pick();
  give_x(call, x, table.takes_element[static_cast<int>(call.element)]);
  run(call, table.plain[static_cast<int>(call.element)]);
}

void invariant_gemm(at::Tensor& out, const at::Tensor& x, const QuantisedWeight& weight, const at::Tensor& bias) {
  const Arguments arguments("invariant_gemm");
  Multiplied call = prepare(arguments, out, x, weight.rows, weight.columns, bias);
  call.loop.weight = weight.values.const_data_ptr();
  call.loop.weight_stride = weight.values.size(1);
  call.loop.scales = weight.scales.const_data_ptr<float>();
  if (weight.zeros.defined()) call.loop.zeros = weight.zeros.const_data_ptr<float>();
  call.loop.group = weight.group;
  const InvariantGemmTable& table = kCompiledInvariantGemm.pick();
  const bool int4 = weight.format == WeightFormat::kInt4;
  const InvariantGemmTable::Arrangement& how = table.arrangement[static_cast<int>(call.element)];
  call.loop.arranged = takes_arranged(how, weight);
  if (call.loop.arranged) {
    give_x(call, arranged(x, how));
  } else {
    give_x(call, x, !int4 && table.takes_element[static_cast<int>(call.element)]);
  }
  const auto& functions = weight.format == WeightFormat::kInt8 ? table.int8 : table.int4;
  run(call, functions[static_cast<int>(call.element)]);
}

}  // namespace trireme::kernels
