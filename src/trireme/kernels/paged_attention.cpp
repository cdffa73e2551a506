#include "trireme/kernels/paged_attention.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "trireme/kernels/arguments.h"
#include "trireme/kernels/cpu/paged_attention_table.h"
#include "trireme/kernels/cpu/pick.h"

namespace trireme::kernels {
namespace {

constexpr Compiled<PagedAttentionTable> kPagedAttention{kPagedAttentionPlain, kPagedAttentionV3, kPagedAttentionV4,
                                                        kPagedAttentionV4Bf16};
constexpr std::int64_t kWorthAThread = 32768;  // multiply-adds

void* paged_scratch(std::int64_t bytes) {
  thread_local std::vector<char> room;
  if (room.size() < static_cast<std::size_t>(bytes)) room.resize(static_cast<std::size_t>(bytes));
  return room.data();
}

void check_scales(const Arguments& arguments, const at::Tensor& codes, const char* name, const at::Tensor& scales) {
  if (codes.scalar_type() == at::kByte && scales.defined() && scales.scalar_type() == at::kFloat && scales.dim() == 4 &&
      scales.is_contiguous() && scales.sizes().slice(0, 3) == codes.sizes().slice(0, 3) && scales.size(3) > 0 &&
      codes.size(3) % scales.size(3) == 0) {
    return;
  }
  arguments.refuse(fmt::format(
      "{} must be bytes, with contiguous float scales [blocks, block size, kv heads, parts] whose parts divide a head",
      describe(codes, name)));
}

void check_tensors(const Arguments& arguments, const at::Tensor& out, const at::Tensor& q, const at::Tensor& keys,
                   const at::Tensor& values, const PagedAttention& options) {
  const Element element = arguments.element(q, "q");
  const bool codes = options.key_scales.defined();
  for (const auto& [tensor, name] : {std::pair{&out, "out"}, std::pair{&keys, "keys"}, std::pair{&values, "values"}}) {
    if ((codes && tensor != &out) || arguments.element(*tensor, name) == element) continue;
    arguments.refuse(fmt::format("{} and {} have different types", describe(q, "q"), describe(*tensor, name)));
  }
  if (arguments.on_gpu()) arguments.refuse("runs on the CPU, but the tensors are on a GPU", "use attention_forward");
  for (const auto& [tensor, name] : {std::pair{&q, "q"}, std::pair{&out, "out"}}) {
    if (tensor->dim() == 3 && tensor->sizes() == q.sizes() && (tensor->size(2) <= 1 || tensor->stride(2) == 1))
      continue;
    arguments.refuse(fmt::format("{} must be [tokens, heads, head size] with a contiguous last dimension, as q is",
                                 describe(*tensor, name)));
  }
  for (const auto& [tensor, name] : {std::pair{&keys, "keys"}, std::pair{&values, "values"}}) {
    if (tensor->dim() == 4 && tensor->sizes() == keys.sizes() && tensor->is_contiguous() &&
        tensor->size(3) == q.size(2) && tensor->size(2) > 0 && q.size(1) % tensor->size(2) == 0) {
      continue;
    }
    arguments.refuse(
        fmt::format("{} must be contiguous [blocks, block size, kv heads, head size], whose heads divide "
                    "those of {}",
                    describe(*tensor, name), describe(q, "q")));
  }
  if (!codes) return;
  check_scales(arguments, keys, "keys", options.key_scales);
  check_scales(arguments, values, "values", options.value_scales);
  if (options.key_scales.size(3) != options.value_scales.size(3))
    arguments.refuse("has other numbers of scales for keys than for values");
}

/// What each query sees, after a look at every number that memory is read by.
std::vector<PagedAttentionLoop::Query> queries_of(const Arguments& arguments, const at::Tensor& q,
                                                  const at::Tensor& keys, std::span<const PagedSequence> sequences,
                                                  std::int64_t window) {
  const std::int64_t block_size = keys.size(1);
  std::vector<PagedAttentionLoop::Query> queries;
  for (const PagedSequence& sequence : sequences) {
    if (sequence.first_row < 0 || sequence.query_len < 0 || sequence.first_row + sequence.query_len > q.size(0)) {
      arguments.refuse(fmt::format("rows {} to {} are not among those of {}", sequence.first_row,
                                   sequence.first_row + sequence.query_len, describe(q, "q")));
    }
    const auto begin_of = [&](std::int64_t end) { return window > 0 ? std::max<std::int64_t>(0, end - window) : 0; };
    const std::int64_t end = sequence.context_len + sequence.query_len;
    for (std::int64_t block = begin_of(sequence.context_len + 1) / block_size; block * block_size < end; ++block) {
      const bool there = block < static_cast<std::int64_t>(sequence.block_table.size());
      const std::int64_t at = there ? sequence.block_table[static_cast<std::size_t>(block)] : -1;
      if (at >= 0 && at < keys.size(0)) continue;
      arguments.refuse(
          fmt::format("a sequence of {} tokens has block {} in the place of its block {}, but there are {}", end, at,
                      block, keys.size(0)));
    }
    for (std::int64_t i = 0; i < sequence.query_len; ++i) {
      const std::int64_t sees = sequence.context_len + i + 1;
      queries.push_back({.row = sequence.first_row + i,
                         .begin = begin_of(sees),
                         .end = sees,
                         .block_table = sequence.block_table.data()});
    }
  }
  return queries;
}

void check_blocks(const Arguments& arguments, const at::Tensor& q, const at::Tensor& keys,
                  std::span<const PagedSequence> sequences, const PagedAttention& options) {
  const BlockLists& lists = *options.blocks;
  if (options.window > 0) arguments.refuse("takes lists of blocks or a window, not both");
  if (lists.block % keys.size(1) != 0)
    arguments.refuse(
        fmt::format("blocks of {} tokens are no whole number of the cache's, of {}", lists.block, keys.size(1)));
  if (options.first_layout_head < 0 || options.first_layout_head + q.size(1) > lists.heads)
    arguments.refuse(fmt::format("the lists are of {} heads, but heads {} to {} are attended with", lists.heads,
                                 options.first_layout_head, options.first_layout_head + q.size(1) - 1));
  for (const PagedSequence& sequence : sequences) {
    if (sequence.context_len + sequence.query_len <= lists.tokens) continue;
    arguments.refuse(fmt::format("a sequence has {} tokens, but the lists are of rows of {}",
                                 sequence.context_len + sequence.query_len, lists.tokens));
  }
}

}  // namespace

void paged_attention(at::Tensor& out, const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                     std::span<const PagedSequence> sequences, const PagedAttention& options) {
  const Arguments arguments("paged_attention");
  check_tensors(arguments, out, q, keys, values, options);
  const auto queries = queries_of(arguments, q, keys, sequences, options.window);
  if (queries.empty() || q.size(2) == 0) return;
  const bool codes = options.key_scales.defined();
  PagedAttentionLoop::Blocks blocks{};
  if (const BlockLists* lists = options.blocks; lists != nullptr) {
    check_blocks(arguments, q, keys, sequences, options);
    blocks = {lists->begin.data(), lists->columns.data(), lists->block, lists->rows(), options.first_layout_head};
  }
  const PagedAttentionLoop loop{.queries = queries.data(),
                                .q = q.const_data_ptr(),
                                .keys = keys.const_data_ptr(),
                                .values = values.const_data_ptr(),
                                .key_scales = codes ? options.key_scales.const_data_ptr<float>() : nullptr,
                                .value_scales = codes ? options.value_scales.const_data_ptr<float>() : nullptr,
                                .parts = codes ? options.key_scales.size(3) : 0,
                                .out = out.mutable_data_ptr(),
                                .q_row = q.stride(0),
                                .q_head = q.stride(1),
                                .out_row = out.stride(0),
                                .out_head = out.stride(1),
                                .heads = q.size(1),
                                .kv_heads = keys.size(2),
                                .head_dim = q.size(2),
                                .block_size = keys.size(1),
                                .scale = options.scale,
                                .blocks = options.blocks != nullptr ? &blocks : nullptr,
                                .scratch = paged_scratch};
  std::int64_t seen = 0;
  for (const auto& query : queries) seen += query.end - query.begin;
  const auto tasks = static_cast<std::int64_t>(queries.size()) * loop.kv_heads;
  const std::int64_t work = std::max<std::int64_t>(1, 2 * seen * loop.heads * loop.head_dim / tasks);
  const PagedAttentionTable& table = kPagedAttention.pick();
  const auto attend = (codes ? table.attend_codes : table.attend)[static_cast<int>(arguments.element(q, "q"))];
  at::parallel_for(0, tasks, std::max<std::int64_t>(1, kWorthAThread / work),
                   [&](std::int64_t begin, std::int64_t end) { attend(loop, begin, end); });
}

}  // namespace trireme::kernels
