// trireme plan in-flight: how much must be under way at once, by Little's law.
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/plan/commands.h"
#include "trireme/cli/plan/options.h"
#include "trireme/cli/program.h"
#include "trireme/plan/scaling.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

struct InFlightOptions {
  PlanOptions plan;
  std::string read_latency = "20ms", message = "1M";
  bool json = false;
};

int run(const InFlightOptions& options, Context& context) {
  const PlanTask task = options.plan.resolve();
  const plan::SearchResult found = plan::search(task.hardware, task.job, task.gpus, {.given = task.given, .top = 1});
  const plan::Estimate& best = found.best.empty() ? *found.smallest : found.best.front();
  const double latency = std::chrono::duration<double>(parse_duration(options.read_latency)).count();
  const auto message = static_cast<double>(parse_bytes(options.message));
  const double rows = static_cast<double>(task.job.batch) / best.step_seconds();

  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{"queue"}, {"rate", kRight}, {"latency", kRight}, {"in flight", kRight}, {""}});
  ordered_json json{
      {"layout", to_text(best.config)}, {"step_seconds", best.step_seconds()}, {"queues", ordered_json::array()}};
  const auto add = [&](const char* name, double rate, std::string rate_text, double seconds, std::string what,
                       double count, std::string note) {
    table.add({name, std::move(rate_text), short_seconds(seconds), std::move(what), std::move(note)});
    json["queues"].push_back({{"name", name}, {"rate", rate}, {"latency_seconds", seconds}, {"in_flight", count}});
  };
  const double readers = best.config.dp(), each = rows / readers;
  const double samples = plan::in_flight(each, latency);
  add("sequences prefetched, each replica", each, fmt::format("{:.3g}/s", each), latency,
      fmt::format("{:.0f} sequences", std::ceil(samples)), samples,
      fmt::format("data.prefetch = {:.0f} micro-batches or more",
                  std::max(1.0, std::ceil(samples / static_cast<double>(best.config.micro_batch_size)))));
  const auto link = [&](const char* name, double bandwidth, double microseconds) {
    if (bandwidth <= 0) return;
    const double bytes = plan::in_flight(bandwidth, microseconds * 1e-6);
    add(name, bandwidth, short_bandwidth(bandwidth), microseconds * 1e-6, short_bytes(bytes), bytes,
        fmt::format("{:.0f} messages of {}", std::max(1.0, std::ceil(bytes / message)), short_bytes(message)));
  };
  link("bytes on a node's link", task.hardware.link_bandwidth(), task.hardware.cluster.link.latency_us);
  link("bytes on the network", task.hardware.network_bandwidth(), task.hardware.cluster.network.latency_us);
  if (best.config.layout.pp > 1) {
    const double micros = static_cast<double>(best.config.micros(task.job.batch)) / best.step_seconds();
    double through = 0;
    const plan::LayerPasses passes = plan::layer_passes(task.hardware, task.job, best.config);
    for (const plan::ChunkTime& chunk :
         plan::chunk_times(passes, plan::stage_plan(task.job, best.config, best.config.micros(task.job.batch)).chunks))
      through += chunk.total();
    const double count = plan::in_flight(micros, through);
    add("micro-batches in a pipeline", micros, fmt::format("{:.3g}/s", micros), through, fmt::format("{:.1f}", count),
        count,
        fmt::format("{} stages; the schedule holds {:.1f} on its fullest", best.config.layout.pp,
                    best.memory.fullest.in_flight));
  }
  if (options.json) {
    context.out << json.dump(2) << '\n';
    return kExitFine;
  }
  fmt::print(context.out, "{} on {} x {}: {:.4g} s a step\n\nwhat must be in flight: rate x latency (Little 1961)\n{}",
             to_text(best.config), task.gpus, task.hardware.device.name, best.step_seconds(), table.text("  "));
  return kExitFine;
}

}  // namespace

void add_plan_in_flight(Command& plan, Context& context) {
  Command& command = plan.add_subcommand(
      "in-flight", "How much must be in flight to keep everything busy: prefetch, messages, micro-batches");
  const auto options = std::make_shared<InFlightOptions>();  // shared with the callback, which outlives this function
  options->plan.add_to(command, PlanOptions::Positional::kModel);
  command.add_option("--read-latency", options->read_latency, "Latency of reading a sequence; default 20ms")
      .type_name("TIME");
  command.add_option("--message", options->message, "Size of a message; default 1M").type_name("BYTES");
  command.add_flag("--json", options->json, "As JSON, and nothing else");
  command.footer(
      "Example:\n  trireme plan in-flight --model llama3-8b --cluster dgx-h100 --gpus 64 --read-latency 50ms");
  command.callback([&context, options] { context.run = [&context, options] { return run(*options, context); }; });
}

}  // namespace trireme::cli
