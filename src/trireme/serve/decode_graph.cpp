#include "trireme/serve/decode_graph.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/device/stream.h"
#include "trireme/kernels/skinny_gemm.h"

namespace trireme::serve {
namespace {

constexpr int kRunsBeforeDecodeCapture = 2;

}  // namespace

/// Everything of one padded size. Numbers lie one after the other: int64 ids, positions, slots by group; then int32
/// sequences, lengths, and block tables by group.
struct DecodeGraphs::Step {
  /// Page-locked memory of the host.
  class PinnedBytes {
   public:
    explicit PinnedBytes(std::size_t bytes) {
      device::check_cuda(device::cuda_runtime().alloc_pinned(&data_, nullptr, bytes), "pinned memory for decode");
    }
    ~PinnedBytes() { device::cuda_runtime().free_pinned(data_); }
    PinnedBytes(const PinnedBytes&) = delete;
    PinnedBytes& operator=(const PinnedBytes&) = delete;
    std::byte* get() const { return static_cast<std::byte*>(data_); }

   private:
    void* data_ = nullptr;
  };

  Step(DecodeGraphs& of, std::int64_t padded_rows)
      : rows(padded_rows),
        table_blocks(nn::blocks_for(of.options_.max_len)),
        groups(of.cache_.groups.size()),
        longs(static_cast<std::size_t>(rows) * (2 + groups)),
        ints(static_cast<std::size_t>(rows) * 2 + groups * static_cast<std::size_t>(rows * table_blocks)),
        host(longs * 8 + ints * 4),
        host_tokens(static_cast<std::size_t>(rows) * 8) {
    const at::TensorOptions there = at::TensorOptions().device(of.device_);
    on_device = at::empty({static_cast<std::int64_t>(longs * 8 + ints * 4)}, there.dtype(at::kByte));
    tokens = at::empty({rows}, there.dtype(at::kLong));
    const at::Tensor all_longs = on_device.narrow(0, 0, static_cast<std::int64_t>(longs * 8)).view(at::kLong);
    const at::Tensor all_ints =
        on_device.narrow(0, static_cast<std::int64_t>(longs * 8), static_cast<std::int64_t>(ints * 4)).view(at::kInt);
    ids = all_longs.narrow(0, 0, rows).view({1, rows});
    positions = all_longs.narrow(0, rows, rows).view({1, rows});
    batch.cache = &of.cache_;
    batch.device = of.device_;
    batch.tokens = rows;
    batch.quantised = of.options_.quantised;
    batch.row_sequences = all_ints.narrow(0, 0, rows);
    batch.row_lengths = all_ints.narrow(0, rows, rows);
    for (std::int64_t row = 0; row < rows; ++row) batch.sequences.push_back({.first_row = row, .query_len = 1});
    for (std::size_t g = 0; g < groups; ++g) {
      nn::KvBatch::Group& group = batch.groups.emplace_back();
      group.window = of.cache_.groups[g].window;
      group.num_blocks = of.cache_.groups[g].num_blocks;
      group.block_tables.resize(static_cast<std::size_t>(rows));  // of the host: nobody asks
      group.slots = all_longs.narrow(0, (2 + static_cast<std::int64_t>(g)) * rows, rows);
      group.tables =
          all_ints.narrow(0, 2 * rows + static_cast<std::int64_t>(g) * rows * table_blocks, rows * table_blocks)
              .view({rows, table_blocks});
    }
  }

  void fill(std::span<const nn::SequenceStep> steps, std::span<const std::int64_t> new_ids) {
    const auto count = static_cast<std::size_t>(rows), blocks = static_cast<std::size_t>(table_blocks);
    auto* of_longs = reinterpret_cast<std::int64_t*>(host.get());
    auto* of_ints = reinterpret_cast<std::int32_t*>(host.get() + longs * 8);
    for (std::size_t row = 0; row < count; ++row) {
      const bool real = row < steps.size();
      const std::int64_t at = real ? steps[row].context_len : 0;
      TRIREME_CHECK(
          !real || (steps[row].query_len == 1 && steps[row].tables.size() == groups && at < table_blocks * 16),
          "sequence {} has {} new tokens after {}: not a step of decode", row, steps[row].query_len, at);
      of_longs[row] = real ? new_ids[row] : 0;
      of_longs[count + row] = at;
      of_ints[row] = static_cast<std::int32_t>(row);
      of_ints[count + row] = real ? static_cast<std::int32_t>(at + 1) : 0;
      for (std::size_t g = 0; g < groups; ++g) {
        std::int32_t* to = of_ints + 2 * count + (g * count + row) * blocks;
        std::int64_t slot = -1;
        if (real) {
          const auto& table = steps[row].tables[g].blocks;
          const auto block = static_cast<std::size_t>(at / nn::kKvBlockSize);
          TRIREME_CHECK(block < table.size() && table[block] >= 0 && table.size() <= blocks,
                        "sequence {} has {} tokens, but {} blocks", row, at + 1, table.size());
          slot = static_cast<std::int64_t>(table[block]) * nn::kKvBlockSize + at % nn::kKvBlockSize;
          std::memcpy(to, table.data(), (block + 1) * sizeof(std::int32_t));
        }
        of_longs[(2 + g) * count + row] = slot;
      }
    }
  }

  void compute(DecodeGraphs& of) {
    nn::Context context;
    context.kv_batch = &batch;
    context.sequence = {.positions = positions, .documents = {}, .position_count = of.options_.max_len};
    logits = of.model_.next_logits(ids, context);
    kernels::argmax_tokens(tokens, logits);
  }

  std::int64_t rows, table_blocks;
  std::size_t groups, longs, ints;
  PinnedBytes host, host_tokens;
  at::Tensor on_device, ids, positions, tokens, logits;
  nn::KvBatch batch;
  int runs = 0;
  std::unique_ptr<device::CudaGraph> graph;
  device::CudaEvent done{device::kEventOrdering};
};

DecodeGraphs::DecodeGraphs(models::Model& model, nn::KvCache& cache, at::Device device, Options options)
    : model_(model), cache_(cache), device_(device), options_(options) {}

DecodeGraphs::~DecodeGraphs() = default;

std::int64_t DecodeGraphs::padded(std::int64_t sequences) {
  for (const std::int64_t size : {1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128}) {
    if (sequences <= size) return size;
  }
  return (sequences + 63) / 64 * 64;
}

std::size_t DecodeGraphs::captured() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(steps_, [](const auto& of) { return of.second->graph != nullptr; }));
}

DecodeGraphs::Output DecodeGraphs::run(std::span<const nn::SequenceStep> steps, std::span<const std::int64_t> ids) {
  const std::int64_t rows = padded(static_cast<std::int64_t>(steps.size()));
  std::unique_ptr<Step>& slot = steps_[rows];
  if (!slot) slot = std::make_unique<Step>(*this, rows);
  Step& step = *slot;
  step.fill(steps, ids);
  const device::CudaRuntime& runtime = device::cuda_runtime();
  device::check_cuda(runtime.memcpy_async(step.on_device.mutable_data_ptr(), step.host.get(),
                                          static_cast<std::size_t>(step.on_device.nbytes()), device::cuda_stream()),
                     "the inputs of a decode step");
  if (options_.capture && !step.graph && step.runs >= kRunsBeforeDecodeCapture) {
    step.graph = std::make_unique<device::CudaGraph>([&] { step.compute(*this); });
  }
  if (step.graph) {
    step.graph->replay();
  } else {
    step.compute(*this);
    ++step.runs;
  }
  device::check_cuda(runtime.memcpy_async(step.host_tokens.get(), step.tokens.const_data_ptr(),
                                          static_cast<std::size_t>(step.tokens.nbytes()), device::cuda_stream()),
                     "the tokens of a decode step");
  step.done.record();
  step.done.synchronise();
  return {step.logits, {reinterpret_cast<const std::int64_t*>(step.host_tokens.get()), steps.size()}};
}

}  // namespace trireme::serve
