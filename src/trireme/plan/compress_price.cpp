#include "trireme/plan/compress_price.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>

#include "trireme/base/units.h"
#include "trireme/spec/parameters.h"
#include "trireme/spec/rules.h"

namespace trireme::plan {
namespace {

using spec::CompressKind;

/// Nanoseconds an element on one core, both ways and with what stays behind: whole reductions of bench/compress_torch
/// on AVX-512. Of Adam's kinds and of local updates estimates by how often a kernel touches an element.
double kernel_ns(const spec::CompressConfig& compress) {
  switch (compress.kind) {
    case CompressKind::kOnebitSgd:
      return 1;
    case CompressKind::kQsgd:
      return compress.coding == spec::QsgdCoding::kElias ? 120 : 4;
    case CompressKind::kPowerSgd:
      return compress.rank == 1 ? 0.5 : 2.5;
    case CompressKind::kDgc:
      return 6;
    case CompressKind::kCsc:
      return 2;
    case CompressKind::kOnebitAdam:
    case CompressKind::kZeroOneAdam:
      return 2.5;
    case CompressKind::kLocalSgd:
    case CompressKind::kElasticAveraging:
      return 2;
    case CompressKind::kDiloco:
      return compress.delta_dtype == spec::DeltaDtype::kFp32 ? 3 : 4;
    case CompressKind::kNone:
      break;
  }
  return 0;
}

/// Bytes that a copy sends for a matrix, of fp32 elements.
double matrix_bytes(const spec::CompressConfig& compress, double rows, double columns, int copies) {
  const double n = rows * columns, both = 2.0 * (copies - 1) / copies;
  switch (compress.kind) {
    case CompressKind::kOnebitSgd:
      return both * (n / 8 + 8 * rows);
    case CompressKind::kQsgd:  // Elias codes: as long as fixed ones at most, for what gradients look like
      return (copies - 1) * (n * std::bit_width(2U * static_cast<unsigned>(compress.levels)) / 8 +
                             4 * std::ceil(n / static_cast<double>(compress.bucket_size)));
    case CompressKind::kPowerSgd: {
      const double rank = std::min<double>(compress.rank, std::min(rows, columns)), factors = rank * (rows + columns);
      if (2 * factors >= n) return both * 4 * n;
      return both * 4 * factors / (compress.alternate ? 2 : 1);
    }
    case CompressKind::kDgc:
      return (copies - 1) * 8 * std::max(1.0, n * (1 - compress.sparsity));
    case CompressKind::kCsc:
      return both * (4 * n * compress.density + 8 * n / static_cast<double>(compress.chunk));
    case CompressKind::kOnebitAdam:
      return both * n / 8;
    case CompressKind::kZeroOneAdam:
      return both * n / 8 / compress.max_local_steps;
    default:
      return both * 4 * n;
  }
}

/// Messages that wait for each other in a compressed step, or in a round of local updates. Up to 16 copies send theirs
/// at once where they are messages of bytes; sums are made by doubling.
double rounds(const spec::CompressConfig& compress, int copies) {
  const double sum = std::bit_width(static_cast<unsigned>(copies - 1)), gather = copies <= 16 ? 1 : copies - 1;
  switch (compress.kind) {
    case CompressKind::kOnebitSgd:
    case CompressKind::kOnebitAdam:
    case CompressKind::kZeroOneAdam:
      return std::max(sum, 2 * gather);
    case CompressKind::kQsgd:
      return std::max(sum, (compress.coding == spec::QsgdCoding::kElias ? 2 : 1) * gather);
    case CompressKind::kDgc:
      return std::max(sum, gather);
    case CompressKind::kPowerSgd:
      return compress.alternate ? sum : 2 * sum;
    case CompressKind::kCsc:
      return 3 * sum;  // the chunks in pieces: twice
    case CompressKind::kDiloco:
      return compress.delta_dtype == spec::DeltaDtype::kFp32 ? 2 * sum : 2 * gather;
    default:
      return 2 * sum;
  }
}

/// How many of so many bytes of gradients are exchanged by themselves, from when they are full.
double early_buckets(const spec::Recipe& recipe, double gradient_bytes) {
  const spec::CompressConfig& compress = recipe.compress;
  const bool waits = !compress.overlap || compress.local_clip || compress.kind == CompressKind::kCsc ||
                     spec::lets_copies_drift(compress.kind) || recipe.run.device == spec::DeviceKind::kCuda;
  const double size = recipe.layout.bucket_mb * 1e6;
  return waits || size <= 0 ? 1 : std::max(1.0, std::ceil(gradient_bytes / size));
}

double delta_bytes(spec::DeltaDtype type) {
  return type == spec::DeltaDtype::kFp32 ? 4 : type == spec::DeltaDtype::kFp16 ? 2 : 1;
}

}  // namespace

double CompressPrice::dense_step(const CompressTask& task, double bandwidth) const {
  const double wire = dense_bytes / bandwidth + 2 * (task.copies - 1) * task.latency_s;
  return task.compute_s + std::max(0.0, wire - 2.0 / 3 * task.compute_s);
}

double CompressPrice::step(const CompressTask& task, double bandwidth) const {
  // Evenly filled in the course of backward: what counts is when the first one sets out, or when the last one does.
  const double backward = 2.0 / 3 * task.compute_s, wire = sent_bytes / bandwidth;
  const double exposed = std::max(backward / buckets + wire, backward + wire / buckets) - backward;
  return task.compute_s + kernel_s + exposed + messages * task.latency_s;
}

CompressPrice price_compression(const spec::Recipe& recipe, const spec::ModelShape& shape, const CompressTask& task) {
  const spec::CompressConfig& compress = recipe.compress;
  CompressPrice price;
  double elements = 0;
  for (const spec::ParameterShape& whole : spec::list_parameters(shape)) {
    const spec::ParameterShape one = spec::on_tensor_rank(whole, shape, recipe.layout.tp);
    // Of experts a rank holds some, and fewer copies exchange them.
    const bool experts = whole.name.find(".experts.") != std::string::npos;
    const int ep = experts ? recipe.layout.ep : 1,
              copies = experts ? task.copies / static_cast<int>(spec::expert_share_of_dp(recipe.layout, task.copies))
                               : task.copies;
    const double both = 2.0 * (copies - 1) / copies;
    const auto rows = static_cast<double>(one.rows) / ep,
               columns = static_cast<double>(std::max<std::int64_t>(1, one.columns));
    const bool large = whole.columns > 0 && whole.rows * whole.columns >= compress.min_elements;
    const double part = 1.0 / recipe.layout.pp;
    price.dense_bytes += part * both * 4 * rows * columns;
    if (copies == 1 && task.copies > 1) continue;
    elements += part * rows * columns;
    if (!spec::has_local_updates(compress.kind))
      price.sent_bytes += part * (large ? matrix_bytes(compress, rows, columns, copies) : both * 4 * rows * columns);
  }
  double every = 1;
  if (spec::has_local_updates(compress.kind)) {
    every = static_cast<double>(spec::interval_of(compress));
    const double width = compress.kind == CompressKind::kDiloco ? delta_bytes(compress.delta_dtype) : 4;
    price.sent_bytes = 2.0 * (task.copies - 1) / task.copies * width * elements / every;
  }
  price.buckets = early_buckets(recipe, 4 * elements);
  price.kernel_s = elements * kernel_ns(compress) * task.kernel_factor * 1e-9 / every;
  price.messages = task.copies > 1 ? rounds(compress, task.copies) / every : 0;
  // Both sides are monotonic in 1 / bandwidth, and only the dense one has a part that is hidden: one crossing at most.
  const auto pays = [&](double bandwidth) { return price.step(task, bandwidth) < price.dense_step(task, bandwidth); };
  double low = 1e3, high = 1e15;
  if (!pays(low)) return price;
  for (int i = 0; i < 100; ++i) {
    const double middle = std::sqrt(low * high);
    (pays(middle) ? low : high) = middle;
  }
  price.pays_below = low;
  return price;
}

std::optional<CompressionThere> compression_there(const spec::Recipe& recipe, const spec::ModelShape& shape,
                                                  const spec::ParallelConfig& config, const cost::Hardware& hardware,
                                                  double compute_s) {
  const bool emulated = recipe.comm.transport == spec::Transport::kEmulated;
  // Kernels are about as fast as memory: an H200, whose copies are a hundred times a core's, packs a hundred times as
  // fast (docs/performance.md).
  constexpr double kCoreGbPerS = 36;
  CompressionThere there{
      .price = {},
      .task = {.copies = recipe.compress.workers.value_or(config.dp()),
               .compute_s = compute_s,
               .latency_s = emulated ? std::chrono::duration<double>(recipe.emulated.latency).count() : 0,
               .kernel_factor = std::min(1.0, kCoreGbPerS / hardware.device.memory_gb_per_s)},
      .zero = config.layout.zero};
  if (recipe.compress.kind == CompressKind::kNone || there.task.copies < 2) return std::nullopt;
  const bool one_node = config.ranks() <= hardware.cluster.gpus_per_node;
  there.bandwidth = emulated   ? static_cast<double>(recipe.emulated.bandwidth)
                    : one_node ? hardware.link_bandwidth()
                               : hardware.network_bandwidth();
  spec::Recipe of_layout = recipe;
  spec::apply(config, of_layout);
  there.price = price_compression(of_layout, shape, there.task);
  return there;
}

std::string to_text(const CompressionThere& there, spec::CompressKind kind) {
  return fmt::format("compress: {}: {}{}", spec::compress_name(kind), to_text(there.price, there.task, there.bandwidth),
                     there.zero > 1 ? fmt::format("; it is refused with ZeRO-{}", there.zero) : "");
}

std::string to_text(const CompressPrice& price, const CompressTask& task, double bandwidth) {
  const auto gbit = [](double bytes) { return fmt::format("{:.3g} Gbit/s", bytes * 8e-9); };
  const std::string bytes = fmt::format("a copy sends {} in place of {} a step", short_bytes(price.sent_bytes),
                                        short_bytes(price.dense_bytes));
  if (!price.pays_below) return bytes + ", which pays at no bandwidth";
  const double factor = price.dense_step(task, bandwidth) / price.step(task, bandwidth);
  return fmt::format("{}; it pays below {} between copies: at {} a step is {:.2f}x as fast as dense{}", bytes,
                     gbit(*price.pays_below), gbit(bandwidth), factor, factor < 1 ? " - does not pay" : "");
}

}  // namespace trireme::plan
