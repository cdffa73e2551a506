#include "trireme/cli/plan/print.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/plan/compress_price.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;
using plan::Estimate;

template <typename Enum>
std::string name_of(Enum value) {
  return std::string(name_in(enum_names(std::type_identity<Enum>{}), value));
}

std::string seconds(double value) { return fmt::format("{:.4g} s", value); }
std::string gib(double bytes) { return fmt::format("{:.2f} GiB", bytes / 1073741824.0); }

std::string time_table(const Estimate& estimate) {
  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{"time of a step goes to"}, {"", kRight}, {"%", kRight}, {""}});
  const plan::StepTime& time = estimate.time;
  const auto row = [&](const char* name, double value, const char* note) {
    table.add({name, seconds(value), fmt::format("{:.1f}", 100 * value / time.total()), note});
  };
  row("GEMMs", time.work.matmul, "");
  row("attention", time.work.attention, "");
  row("norms, activations, loss", time.work.streaming, "what only moves memory");
  row(estimate.config.layout.ep > 1 ? "tensor, context, expert parallelism" : "tensor and context parallelism",
      time.work.communication, "exposed");
  row("stages' messages", time.pipeline, "exposed");
  row("pipeline bubble", time.bubble, time.replayed ? "by replaying the schedule" : "");
  row("replicas", time.replicas, "gradients and weights over dp, exposed");
  if (time.offload > 0) row("host", time.offload, "gradients and weights to and from it, exposed");
  row("optimizer", time.optimizer, "");
  return table.text("  ");
}

std::string memory_table(const Estimate& estimate) {
  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{"memory of the fullest rank"}, {"", kRight}});
  const plan::MemoryParts& parts = estimate.memory.parts;
  table.add({"weights", gib(parts.weights)});
  table.add({"gradients", gib(parts.gradients)});
  table.add({"optimizer", gib(parts.optimizer)});
  table.add({"activations", gib(parts.activations)});
  table.add({"working memory", gib(parts.working)});
  table.add({"buffers and device software", gib(parts.buffers)});
  table.add({"together", gib(parts.total())});
  if (estimate.memory.host > 0) table.add({"beside it, in the host's memory", gib(estimate.memory.host)});
  return table.text("  ");
}

/// Of the recipe that was named, with this layout.
std::optional<plan::CompressionThere> compression_of(const PlanTask& task, const Estimate& estimate) {
  return plan::compression_there(task.recipe, task.job.shape, estimate.config, task.hardware,
                                 estimate.time.work.total());
}

}  // namespace

std::string breakdown(const PlanTask& task, const Estimate& estimate) {
  const double step = estimate.step_seconds();
  std::string out = fmt::format("{} on {} x {} ({})\n", to_text(estimate.config), task.gpus, task.hardware.device.name,
                                task.hardware.cluster.name);
  out += fmt::format(
      "  step {}, {:.1f} model TFLOP/s a device ({:.1f} with recomputation), MFU {:.1f} %, {} tokens/s, {} "
      "tokens/day\n",
      seconds(step), estimate.tflops_per_gpu(), estimate.hardware_tflops_per_gpu(), 100 * estimate.mfu(),
      short_count(task.job.tokens() / step), short_count(task.job.tokens() / step * 86400));
  out += fmt::format("  memory {} of {}: {}; {}\n\n", gib(estimate.memory.peak()), gib(estimate.memory.device),
                     estimate.memory.fits ? "fits" : "DOES NOT FIT", estimate.memory.why());
  out += time_table(estimate) + '\n' + memory_table(estimate);
  if (const auto there = compression_of(task, estimate))
    out += fmt::format("\n  {}\n", to_text(*there, task.recipe.compress.kind));
  return out;
}

ordered_json to_json(const spec::ParallelConfig& config) {
  const spec::LayoutConfig& layout = config.layout;
  return {{"tp", layout.tp},
          {"pp", layout.pp},
          {"dp", config.dp()},
          {"cp", layout.cp},
          {"cp_kind", name_of(layout.cp_kind)},
          {"ep", layout.ep},
          {"virtual_stages", config.pipeline.virtual_stages},
          {"micro_batch_size", config.micro_batch_size},
          {"schedule", config.pipeline.schedule},
          {"split", config.pipeline.split},
          {"zero", layout.zero},
          {"zero_group", layout.zero_group.value_or(config.dp())},
          {"offload", name_of(layout.offload)},
          {"sequence_parallel", layout.sequence_parallel},
          {"recompute", name_of(config.recompute)}};
}

ordered_json memory_json(const plan::MemoryParts& parts) {
  return {{"weights", parts.weights},         {"gradients", parts.gradients}, {"optimizer", parts.optimizer},
          {"activations", parts.activations}, {"working", parts.working},     {"buffers", parts.buffers}};
}

ordered_json chosen_json(const PlanTask& task, const Estimate& estimate) {
  ordered_json chosen = ordered_json::object();
  const ordered_json layout = to_json(estimate.config);
  const plan::Choices& given = task.given;
  const auto take = [&](const char* key, bool is_given) {
    if (!is_given) chosen[key] = layout.at(key);
  };
  take("tp", given.tp.has_value());
  take("pp", given.pp.has_value());
  take("dp", given.dp.has_value());
  take("cp", given.cp.has_value());
  take("ep", given.ep.has_value() || !task.job.shape.experts.used());
  take("virtual_stages", given.virtual_stages.has_value());
  take("micro_batch_size", given.micro_batch_size.has_value());
  take("schedule", given.schedule.has_value());
  take("split", given.split.has_value());
  take("zero", given.zero.has_value());
  take("zero_group", given.zero_group.has_value());
  take("offload", given.offload.has_value());
  take("sequence_parallel", given.sequence_parallel.has_value());
  take("recompute", given.recompute.has_value());
  for (const std::string& name : task.chosen) {
    if (name == "precision") chosen[name] = name_of(task.job.arithmetic());
    if (name == "attention") chosen[name] = name_of(task.job.attention);
    if (name == "seq_len") chosen[name] = task.job.seq_len;
    if (name == "global_batch_size") chosen[name] = task.job.batch;
  }
  return chosen;
}

ordered_json to_json(const PlanTask& task, const Estimate& estimate) {
  const plan::StepTime& time = estimate.time;
  ordered_json out = {{"step_seconds", estimate.step_seconds()},
                      {"tflops_per_gpu", estimate.tflops_per_gpu()},
                      {"hardware_tflops_per_gpu", estimate.hardware_tflops_per_gpu()},
                      {"mfu", estimate.mfu()},
                      {"tokens_per_second", task.job.tokens() / estimate.step_seconds()},
                      {"memory_bytes_peak", estimate.memory.peak()},
                      {"memory_bytes_device", estimate.memory.device},
                      {"memory_bytes_host", estimate.memory.host},
                      {"fits", estimate.memory.fits},
                      {"fullest_stage", estimate.memory.fullest.stage},
                      {"gpus", task.gpus},
                      {"layout", to_json(estimate.config)},
                      {"chosen", chosen_json(task, estimate)},
                      {"time_breakdown",
                       {{"matmul", time.work.matmul},
                        {"attention", time.work.attention},
                        {"streaming", time.work.streaming},
                        {"tensor_parallel", time.work.communication},
                        {"pipeline_messages", time.pipeline},
                        {"bubble", time.bubble},
                        {"replicas", time.replicas},
                        {"offload", time.offload},
                        {"optimizer", time.optimizer},
                        {"recompute", time.recompute}}},
                      {"memory_breakdown", memory_json(estimate.memory.parts)}};
  if (const auto there = compression_of(task, estimate)) {
    out["compress"] = {{"kind", spec::compress_name(task.recipe.compress.kind)},
                       {"sent_bytes", there->price.sent_bytes},
                       {"dense_bytes", there->price.dense_bytes},
                       {"network_bytes_per_second", there->bandwidth}};
    if (there->price.pays_below) out["compress"]["pays_below_bytes_per_second"] = *there->price.pays_below;
  }
  return out;
}

}  // namespace trireme::cli
