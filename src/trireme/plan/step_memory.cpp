#include "trireme/plan/step_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/text.h"
#include "trireme/base/units.h"

namespace trireme::plan {
namespace {

/// Sums of ZeRO 2 and 3 on their way: as many as DataParallel lets be under way, the one that fills, and with offload
/// those that leave for the host.
constexpr double kBucketsOnTheWay = 5, kBucketsLeaving = 4;

}  // namespace

double StepMemory::peak() const {
  double sum = 0;
  for (const Line& line : lines) sum += line.bytes;
  return sum;
}

std::string StepMemory::table() const {
  using enum TextTable::Align;
  TextTable table({{"GPU memory, planned"}, {"bytes", kRight}, {"which are"}});
  for (const Line& line : lines) table.add({line.name, short_bytes(line.bytes), line.which});
  table.add({"at most", short_bytes(peak()), host > 0 ? short_bytes(host) + " more on the host" : ""});
  return table.text();
}

StepMemory step_memory(const StepMemoryTask& task) {
  const TrafficTask& step = task.step;
  const spec::ModelShape& shape = step.shape;
  StepMemory out;
  if (step.layout.pp > 1 || shape.num_encoder_layers > 0 || !shape.norm_first) return out;
  const int zero = step.layout.zero;
  const double n = task.sharing, all = task.elements, narrow = task.narrow_elements, wide = all - narrow;
  const auto shared = [&](int stage) { return zero >= stage ? 1 / n : 1.0; };
  const auto add = [&](const char* name, double bytes, std::string which) {
    if (bytes > 0) out.lines.push_back({name, std::move(which), bytes});
  };
  const double compute = step.compute_bytes, sum = step.sum_bytes;
  const double master_weights = (compute == sum ? 0 : wide * sum) * shared(1);
  // What has no master is among the matrices of layers, and those are among what has narrow gradients.
  const double slim = std::max(narrow, task.narrow_gradients),
               moments = all * task.moments * task.moment_bytes * shared(1);
  const double sums = (all - slim) * sum + slim * compute;
  add("weights", all * compute * shared(3),
      fmt::format("{} bytes each{}", step.compute_bytes, zero >= 3 ? ", shared out" : ""));
  if (task.offload) {
    // New weights are made beside the master weights where types differ, and go from there.
    const double there = (task.rounded_sums ? all * compute : sums) * (task.late ? 2 : 1);
    out.host = master_weights + moments + (there + all * compute) * shared(1);
    if (zero < 2) add("gradients", sums, "until they are on the host");
  } else {
    add("master weights", master_weights, fmt::format("{} bytes each", step.sum_bytes));
    add("gradients", sums * shared(2),
        slim > 0 ? fmt::format("{} bytes of {}, {} of the rest", step.compute_bytes,
                               task.narrow_gradients > 0 ? "matrices and tables" : "matrices of layers", step.sum_bytes)
                 : fmt::format("{} bytes each", step.sum_bytes));
    add("optimizer", moments, fmt::format("{} x {} bytes each", task.moments, task.moment_bytes));
  }
  if (task.directions) {
    const double directions = slim * sum * shared(1);
    task.offload ? void(out.host += directions) : add("directions", directions, "of LAMB, beside narrower gradients");
  }
  if (zero >= 2) {
    const double bucket =
        std::max(task.bucket_bytes, task.largest_elements * (task.narrow_gradients > 0 ? compute : sum));
    const double ways = kBucketsOnTheWay + (task.offload ? kBucketsLeaving : 0);
    add("buckets", std::min(sums, bucket * ways), "gradients in flight");
    if (zero == 3) {
      const double layer = all / static_cast<double>(std::max<std::int64_t>(step.layers, 1));
      add("gathered", 2 * std::max(layer, task.largest_elements) * compute, "weights of two layers");
    }
  }

  const double tokens = static_cast<double>(step.rows * step.sequence / step.layout.cp), tp = step.layout.tp;
  const double hidden = tokens * static_cast<double>(shape.hidden_size) * compute;
  TrafficTask head = step;
  head.layers = 0;
  const double kept_head = activation_bytes(head), kept_layers = activation_bytes(step) - kept_head;
  TrafficTask one = head;
  one.layers = 1;
  one.recompute = spec::RecomputeKind::kNone;
  const double layer = activation_bytes(one) - kept_head;
  const bool runs_again = step.recompute == spec::RecomputeKind::kFull;
  if (task.stash && runs_again) {
    add("activations", 2 * hidden, "of two layers' inputs; the rest is on the host");
    out.host += std::max(0.0, kept_layers - hidden);
  } else {
    add("activations", kept_layers,
        fmt::format("{} of {} in each of {}",
                    short_bytes(kept_layers / static_cast<double>(std::max<std::int64_t>(step.layers, 1))),
                    runs_again ? "inputs" : "what backward reads",
                    counted(static_cast<std::size_t>(step.layers), "layer")));
  }
  add("head and tokens", kept_head, "the last norm's input, the head's input gradient");
  // The head: a chunk of logits, whose gradient takes their place, and the norm's output. A layer that goes back:
  // gradients of its MLP's middle, the middle once more, and what comes in and goes out.
  const double row = static_cast<double>(shape.vocab_size) / tp * compute;
  const double logits = std::min(std::max(task.logits_bytes, row), tokens * row);
  const double middle = tokens * static_cast<double>(shape.ffn_size) / tp * compute * (shape.gated ? 4 : 3);
  const double back = middle + 2 * hidden + (runs_again ? layer : 0);
  if (logits + hidden >= back) {
    add("working", logits + hidden, "a chunk of logits and what it is made from");
  } else {
    add("working", back, runs_again ? "a layer that runs again and goes back" : "gradients inside a layer");
  }
  add("libraries", kGemmWorkspace, "room for GEMMs");
  return out;
}

}  // namespace trireme::plan
