#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "trireme/kernels/arguments.h"
#include "trireme/kernels/cuda.h"
#include "trireme/kernels/cuda_inference_table.h"
#include "trireme/kernels/paged_attention.h"

namespace trireme::kernels {
namespace {

constexpr std::int64_t kWantedBlocks = 264;  // of threads: two for each SM of an H200
constexpr std::int64_t kMostSplits = 32, kPagesOfSplit = 4;

/// Few queries would leave most of a GPU idle, so their keys are shared out. By what a step's shape says alone: lengths
/// are known on the device only.
std::int64_t splits_of(std::int64_t rows, std::int64_t kv_heads, std::int64_t table_blocks) {
  const std::int64_t wanted = kWantedBlocks / std::max<std::int64_t>(1, rows * kv_heads);
  return std::clamp<std::int64_t>(std::min(wanted, table_blocks / kPagesOfSplit), 1, kMostSplits);
}

const std::int32_t* int_numbers(const Arguments& arguments, const at::Tensor& tensor, const char* name,
                                std::int64_t count) {
  if (tensor.defined() && tensor.is_cuda() && tensor.scalar_type() == at::kInt && tensor.is_contiguous() &&
      tensor.numel() == count) {
    return tensor.const_data_ptr<std::int32_t>();
  }
  arguments.refuse(fmt::format("{} must be {} contiguous int32 numbers on the GPU", describe(tensor, name), count));
}

}  // namespace

void paged_attention(at::Tensor& out, const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                     const PagedRows& rows, const PagedAttention& options) {
  const Arguments arguments("paged_attention");
  if (options.blocks != nullptr) arguments.refuse("block-sparse attention reads a cache on the CPU alone");
  const Element element = arguments.element(q, "q");
  for (const auto& [tensor, name] :
       {std::pair{&std::as_const(out), "out"}, std::pair{&keys, "keys"}, std::pair{&values, "values"}}) {
    if (arguments.element(*tensor, name) == element && tensor->is_cuda()) continue;
    arguments.refuse(fmt::format("{} must be of q's type, on the GPU", describe(*tensor, name)));
  }
  if (q.dim() != 3 || q.stride(2) != 1 || out.sizes() != q.sizes() || out.stride(2) != 1) {
    arguments.refuse(fmt::format("{} and {} must be [tokens, heads, head_dim] with a contiguous last dimension",
                                 describe(q, "q"), describe(out, "out")));
  }
  if (keys.dim() != 4 || !keys.is_contiguous() || !values.is_contiguous() || keys.sizes() != values.sizes() ||
      keys.size(3) != q.size(2) || q.size(1) % keys.size(2) != 0 || q.size(2) > 256) {
    arguments.refuse(
        fmt::format("{} must be contiguous [blocks, block_size, kv_heads, head_dim], whose heads divide those "
                    "of {} and have at most 256 numbers",
                    describe(keys, "keys"), describe(q, "q")));
  }
  if (rows.block_tables.dim() != 2) arguments.refuse(describe(rows.block_tables, "block_tables") + " must be a matrix");
  const std::int64_t tokens = q.size(0), width = rows.block_tables.size(1);
  CudaPagedAttention call{
      .q = q.const_data_ptr(),
      .keys = keys.const_data_ptr(),
      .values = values.const_data_ptr(),
      .out = out.mutable_data_ptr(),
      .q_row = q.stride(0),
      .q_head = q.stride(1),
      .out_row = out.stride(0),
      .out_head = out.stride(1),
      .rows = tokens,
      .heads = static_cast<std::int32_t>(q.size(1)),
      .kv_heads = static_cast<std::int32_t>(keys.size(2)),
      .head_dim = static_cast<std::int32_t>(q.size(2)),
      .block_size = static_cast<std::int32_t>(keys.size(1)),
      .block_tables = int_numbers(arguments, rows.block_tables, "block_tables", rows.block_tables.size(0) * width),
      .table_stride = width,
      .sequences = int_numbers(arguments, rows.sequences, "sequences", tokens),
      .lengths = int_numbers(arguments, rows.lengths, "lengths", tokens),
      .scale = options.scale,
      .window = options.window};
  at::Tensor partial;
  if (element == Element::kBfloat16 || element == Element::kHalf) {
    call.splits = static_cast<std::int32_t>(splits_of(tokens, keys.size(2), width));
    if (call.splits > 1) {
      const std::int64_t parts = tokens * q.size(1) * call.splits;
      partial = at::empty({parts * (q.size(2) + 2)}, q.options().dtype(at::kFloat));
      call.partial_out = partial.mutable_data_ptr<float>();
      call.partial_lse = call.partial_out + parts * q.size(2);
    }
  }
  check_cuda(cuda_inference().paged_attention(call, element, cuda_stream()), "paged_attention");
}

void write_paged(at::Tensor& keys, at::Tensor& values, const at::Tensor& k, const at::Tensor& v,
                 const at::Tensor& slots) {
  const Arguments arguments("write_paged");
  const Element element = arguments.element(keys, "keys");
  const std::int64_t tokens = k.size(0), width = keys.size(2) * keys.size(3);
  for (const auto& [fresh, blocks, name] : {std::tuple{&k, &keys, "k"}, std::tuple{&v, &values, "v"}}) {
    if (!fresh->defined() && !blocks->defined()) continue;
    if (fresh->defined() && blocks->defined() && fresh->dim() == 3 && blocks->dim() == 4 && blocks->is_contiguous() &&
        arguments.element(*fresh, name) == element && fresh->size(0) == tokens && fresh->size(1) == blocks->size(2) &&
        fresh->size(2) == blocks->size(3) && fresh->stride(2) == 1 && fresh->stride(1) == fresh->size(2)) {
      continue;
    }
    arguments.refuse(
        fmt::format("{} must be [tokens, kv_heads, head_dim] of the type and sizes of {}, its heads side by "
                    "side",
                    describe(*fresh, name), describe(*blocks, "the blocks")));
  }
  const CudaPagedWrite call{.k = k.const_data_ptr(),
                            .v = v.defined() ? v.const_data_ptr() : nullptr,
                            .keys = keys.mutable_data_ptr(),
                            .values = values.defined() ? values.mutable_data_ptr() : nullptr,
                            .k_row = k.stride(0),
                            .v_row = v.defined() ? v.stride(0) : 0,
                            .rows = tokens,
                            .width = width,
                            .slots = arguments.numbers(slots, "slots", tokens)};
  check_cuda(cuda_inference().paged_write(call, element, cuda_stream()), "write_paged");
}

}  // namespace trireme::kernels
