#include "trireme/kernels/grouped_gemm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/kernels/cpu/grouped_gemm_table.h"
#include "trireme/kernels/cpu/pick.h"
#include "trireme/kernels/cuda.h"
#include "trireme/kernels/cuda_moe_table.h"
#include "trireme/kernels/expert_ops.h"
#include "trireme/kernels/gemm.h"
#include "trireme/kernels/invariant_gemm.h"

namespace trireme::kernels {
namespace {

/// Groups are as many as the matrices, and their rows are all of those there.
void check_groups(std::span<const std::int64_t> offsets, std::int64_t groups, std::int64_t rows) {
  TRIREME_CHECK(static_cast<std::int64_t>(offsets.size()) == groups + 1, "{} offsets for {} groups", offsets.size(),
                groups);
  TRIREME_CHECK(offsets.front() == 0 && offsets.back() == rows, "groups have rows {} to {} of {}", offsets.front(),
                offsets.back(), rows);
}

/// Of the last dimension of both, and of what comes out.
bool fits_grouped_kernel(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16 && a.size(0) > 0 && a.size(-1) % 8 == 0 &&
         b.size(-1) % 8 == 0 && b.size(-2) % 8 == 0 && a.is_contiguous() && b.is_contiguous();
}

/// Reads `ends` back, which waits for the GPU.
std::vector<std::int64_t> offsets_of(const at::Tensor& ends) {
  const at::Tensor here = ends.to(at::kLong).cpu();
  std::vector<std::int64_t> offsets{0};
  offsets.insert(offsets.end(), here.const_data_ptr<std::int64_t>(),
                 here.const_data_ptr<std::int64_t>() + here.numel());
  return offsets;
}

constexpr Compiled<GroupedGemmTable> kCompiledGroupedGemm{kGroupedGemmPlain, kGroupedGemmV3, kGroupedGemmV4,
                                                          kGroupedGemmV4Bf16};

/// The loops of our own for these types on this CPU; null: there are none.
GroupedGemmFunction loops_for(const at::Tensor& a, const at::Tensor& b, at::ScalarType out) {
  if (!a.is_cpu() || a.scalar_type() != b.scalar_type()) return nullptr;
  const GroupedGemmTable& table = kCompiledGroupedGemm.pick();
  if (a.scalar_type() == at::kFloat) return out == at::kFloat ? table.floats : nullptr;
  if (a.scalar_type() != at::kBFloat16) return nullptr;
  return out == at::kBFloat16 ? table.bfloats : out == at::kFloat ? table.bfloats_to_float : nullptr;
}

std::int64_t stride_of(const at::Tensor& x, std::int64_t dim) { return x.size(dim) == 1 ? 1 : x.stride(dim); }

/// Of out = a b: both operands are packed from rows or from columns that lie next to each other.
bool packs_operands(const GroupedGemmLoop& c) {
  constexpr std::int64_t kMost = 16384;  // rows of a are packed whole
  return (c.a_row == 1 || c.a_k == 1) && (c.b_k == 1 || c.b_column == 1) && c.k > 0 && c.k <= kMost;
}

/// All groups at once, by as many threads as there are: rows of a group in parts whose packed operand stays in cache,
/// and columns too where parts are few. Bits depend on neither.
void run_groups(std::span<const GroupedGemmLoop> groups, GroupedGemmFunction multiply) {
  constexpr std::int64_t kPackedElements = std::int64_t{512} * 1024, kLeastRows = 96, kMostRows = 480, kColumns = 32;
  constexpr double kWorthThreads = 1e6;
  struct Item {
    const GroupedGemmLoop* group;
    GroupedGemmPart part;
  };
  double multiplies = 0;
  std::int64_t parts = 0;
  const auto rows_at_once = [&](const GroupedGemmLoop& c) {
    return std::clamp(kPackedElements / c.k / 12 * 12, kLeastRows, kMostRows);
  };
  for (const GroupedGemmLoop& c : groups) {
    multiplies += static_cast<double>(c.m) * static_cast<double>(c.n) * static_cast<double>(c.k);
    parts += (c.m + rows_at_once(c) - 1) / rows_at_once(c);
  }
  const std::int64_t threads = multiplies < kWorthThreads ? 1 : at::get_num_threads();
  const std::int64_t cuts =
      threads == 1 || parts >= 4 * threads ? 1 : (4 * threads + parts - 1) / std::max<std::int64_t>(1, parts);
  std::vector<Item> items;
  for (const GroupedGemmLoop& c : groups) {
    const std::int64_t panels = (c.n + kColumns - 1) / kColumns, each = (panels + cuts - 1) / cuts * kColumns;
    for (std::int64_t row = 0; row < c.m; row += rows_at_once(c)) {
      for (std::int64_t column = 0; column < c.n; column += each) {
        items.push_back({&c, {row, std::min(c.m, row + rows_at_once(c)), column, std::min(c.n, column + each)}});
      }
    }
  }
  std::atomic<std::size_t> next{0};
  const auto work = [&](std::int64_t, std::int64_t) {
    for (std::size_t i = next++; i < items.size(); i = next++) multiply(*items[i].group, items[i].part);
  };
  if (threads == 1) return work(0, 1);
  at::parallel_for(0, threads, 1, work);
}

}  // namespace

at::Tensor grouped_gemm(const GroupedGemm& call) {
  if (call.ends.defined()) {
    if (fits_grouped_kernel(call.a, call.b))
      return at::_grouped_mm(call.a, call.transpose_b ? call.b.transpose(1, 2) : call.b, call.ends);
    const std::vector<std::int64_t> offsets = offsets_of(call.ends);
    return grouped_gemm({.a = call.a, .b = call.b, .offsets = offsets, .transpose_b = call.transpose_b});
  }
  check_groups(call.offsets, call.b.size(0), call.a.size(0));
  at::Tensor out = at::empty({call.a.size(0), call.b.size(call.transpose_b ? 1 : 2)}, call.a.options());
  if (const GroupedGemmFunction multiply = loops_for(call.a, call.b, out.scalar_type())) {
    std::vector<GroupedGemmLoop> groups;
    const auto bytes = static_cast<std::int64_t>(call.a.element_size());
    for (std::int64_t group = 0; group < call.b.size(0); ++group) {
      const std::int64_t first = call.offsets[static_cast<std::size_t>(group)];
      const std::int64_t rows = call.offsets[static_cast<std::size_t>(group) + 1] - first;
      if (rows == 0) continue;
      groups.push_back({.a = static_cast<const char*>(call.a.const_data_ptr()) + first * call.a.stride(0) * bytes,
                        .b = static_cast<const char*>(call.b.const_data_ptr()) + group * call.b.stride(0) * bytes,
                        .out = static_cast<char*>(out.mutable_data_ptr()) + first * out.stride(0) * bytes,
                        .a_row = call.a.stride(0),
                        .a_k = stride_of(call.a, 1),
                        .b_k = stride_of(call.b, call.transpose_b ? 2 : 1),
                        .b_column = stride_of(call.b, call.transpose_b ? 1 : 2),
                        .out_stride = out.stride(0),
                        .m = rows,
                        .n = out.size(1),
                        .k = call.a.size(1),
                        .scratch = gemm_scratch});
    }
    if (std::ranges::all_of(groups, packs_operands)) {
      run_groups(groups, multiply);
      return out;
    }
  }
  for (std::int64_t group = 0; group < call.b.size(0); ++group) {
    const std::int64_t first = call.offsets[static_cast<std::size_t>(group)];
    const std::int64_t rows = call.offsets[static_cast<std::size_t>(group) + 1] - first;
    if (rows == 0) continue;
    gemm({.a = call.a.narrow(0, first, rows),
          .b = call.b.select(0, group),
          .transpose_b = call.transpose_b,
          .out = out.narrow(0, first, rows)});
  }
  return out;
}

namespace {

/// By loops of our own; false: nothing was done.
bool sums_groups(const GroupedWeightGrad& call) {
  const GroupedGemmFunction multiply = loops_for(call.a, call.b, call.out.scalar_type());
  if (multiply == nullptr || !call.out.is_cpu()) return false;
  std::vector<GroupedGemmLoop> groups;
  std::vector<std::int64_t> empty;
  const auto bytes = static_cast<std::int64_t>(call.a.element_size()),
             out_bytes = static_cast<std::int64_t>(call.out.element_size());
  for (std::int64_t group = 0; group < call.out.size(0); ++group) {
    const std::int64_t first = call.offsets[static_cast<std::size_t>(group)];
    const std::int64_t rows = call.offsets[static_cast<std::size_t>(group) + 1] - first;
    if (rows == 0) {
      empty.push_back(group);
      continue;
    }
    groups.push_back({.a = static_cast<const char*>(call.a.const_data_ptr()) + first * call.a.stride(0) * bytes,
                      .b = static_cast<const char*>(call.b.const_data_ptr()) + first * call.b.stride(0) * bytes,
                      .out = static_cast<char*>(call.out.mutable_data_ptr()) + group * call.out.stride(0) * out_bytes,
                      .a_row = stride_of(call.a, 1),
                      .a_k = call.a.stride(0),
                      .b_k = call.b.stride(0),
                      .b_column = stride_of(call.b, 1),
                      .out_stride = call.out.stride(1),
                      .m = call.a.size(1),
                      .n = call.b.size(1),
                      .k = rows,
                      .accumulate = call.accumulate,
                      .scratch = gemm_scratch});
  }
  if (stride_of(call.out, 2) != 1 || !std::ranges::all_of(groups, packs_operands)) return false;
  if (!call.accumulate) {
    for (const std::int64_t group : empty) call.out.select(0, group).zero_();
  }
  run_groups(groups, multiply);
  return true;
}

}  // namespace

namespace {

/// By Hopper's kernel of our own, into the gradient itself; false: nothing was done.
bool sums_on_hopper(const GroupedWeightGrad& call) {
  // On an H200 faster by 6 to 15 % than ATen's kernel and the pass that adds what it made up; with more rows in a
  // group, and where what is there counts, slower by 3 to 6 %.
  constexpr std::int64_t kMostRowsOfGroup = 2048;
  const std::int64_t groups = call.out.size(0);
  const at::ScalarType type = call.out.scalar_type();
  const bool faster = type == at::kFloat && !call.accumulate && call.a.size(0) <= kMostRowsOfGroup * groups;
  const auto fits = [](const at::Tensor& x, at::ScalarType of) {
    return x.scalar_type() == of && x.is_contiguous() && x.size(-1) % 8 == 0 &&
           reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0;
  };
  if (!call.own_kernel.value_or(faster) || !call.a.is_cuda() || groups > kCudaMostExperts ||
      !fits(call.a, at::kBFloat16) || !fits(call.b, at::kBFloat16) ||
      !fits(call.out, type == at::kFloat ? at::kFloat : at::kBFloat16) || !cuda_moe().has_weight_grad())
    return false;
  const CudaGroupedWeightGrad there{.a = call.a.const_data_ptr(),
                                    .b = call.b.const_data_ptr(),
                                    .ends = call.ends.const_data_ptr<std::int32_t>(),
                                    .out = call.out.mutable_data_ptr(),
                                    .groups = groups,
                                    .m = call.out.size(1),
                                    .n = call.out.size(2),
                                    .wide = type == at::kFloat,
                                    .accumulate = call.accumulate};
  check_cuda(cuda_moe().weight_grad(there, cuda_stream()), "grouped_weight_grad");
  return true;
}

}  // namespace

void grouped_weight_grad(const GroupedWeightGrad& call) {
  if (call.ends.defined()) {
    if (sums_on_hopper(call)) return;
    const at::ScalarType type = call.out.scalar_type();
    if (call.a.scalar_type() == at::kBFloat16 && call.b.scalar_type() == at::kBFloat16 && call.a.size(0) > 0 &&
        call.a.size(1) % 8 == 0 && call.b.size(1) % 8 == 0 && (type == at::kFloat || type == at::kBFloat16)) {
      at::Tensor out = call.out;
      return add_groups(out, at::_grouped_mm(call.a.t(), call.b, call.ends), call.ends, call.accumulate);
    }
    const std::vector<std::int64_t> offsets = offsets_of(call.ends);
    return grouped_weight_grad(
        {.a = call.a, .b = call.b, .offsets = offsets, .out = call.out, .accumulate = call.accumulate});
  }
  check_groups(call.offsets, call.out.size(0), call.a.size(0));
  if (sums_groups(call)) return;
  for (std::int64_t group = 0; group < call.out.size(0); ++group) {
    const std::int64_t first = call.offsets[static_cast<std::size_t>(group)];
    const std::int64_t rows = call.offsets[static_cast<std::size_t>(group) + 1] - first;
    at::Tensor out = call.out.select(0, group);
    if (rows == 0) {
      if (!call.accumulate) out.zero_();
      continue;
    }
    gemm({.a = call.a.narrow(0, first, rows),
          .b = call.b.narrow(0, first, rows),
          .transpose_a = true,
          .out = out,
          .accumulate = call.accumulate});
  }
}

}  // namespace trireme::kernels
