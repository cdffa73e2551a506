// trireme estimate: time and memory of one layout; what is not given is chosen.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/print.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/plan/options.h"
#include "trireme/cli/plan/print.h"
#include "trireme/cli/program.h"

namespace trireme::cli {
namespace {

constexpr const char* kEstimateExamples = R"(Examples:
  trireme estimate --model llama3-70b --cluster dgx-h100 --gpus 256 --tp 8 --pp 4
  trireme estimate --cluster selene --family gpt --num-layers 96 --hidden-size 12288 --num-heads 96 --vocab-size 51200 --seq-len 2048 \
    --tp 8 --pp 12 --dp 16 --micro-batch-size 1 --global-batch-size 1536 --recompute full --precision fp16 \
    --sequence-parallel off --attention unfused --zero 0 --software megatron --schedule 1f1b --json)";

struct EstimateOptions {
  PlanOptions plan;
  bool json = false;
};

int estimate(const EstimateOptions& options, Context& context) {
  const PlanTask task = options.plan.resolve();
  const plan::SearchResult found = plan::search(task.hardware, task.job, task.gpus, {.given = task.given, .top = 3});
  // A layout that does not fit still has its figures: those of the way that needs least.
  const plan::Estimate& best = found.best.empty() ? *found.smallest : found.best.front();
  if (options.json) {
    context.out << to_json(task, best).dump(2) << '\n';
    return kExitFine;
  }
  context.out << breakdown(task, best);
  if (const auto chosen = chosen_json(task, best); !chosen.empty()) {
    std::string line;
    for (const auto& [key, value] : chosen.items()) {
      const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      line += fmt::format("{}{} {}", line.empty() ? "" : ", ", key, text);
    }
    fmt::print(context.out, "\n  chosen: {}\n", line);
  }
  return kExitFine;
}

}  // namespace

void add_estimate_command(Command& app, Context& context) {
  Command& command = app.add_subcommand(
      "estimate", "Predict step time, rates and memory of a layout on a cluster; what is not given is chosen");
  const auto options = std::make_shared<EstimateOptions>();  // shared with the callback, which outlives this function
  options->plan.add_to(command, PlanOptions::Positional::kRecipe);
  command.add_flag("--json", options->json, "As JSON, and nothing else");
  command.footer(kEstimateExamples);
  command.callback([&context, options] { context.run = [&context, options] { return estimate(*options, context); }; });
}

}  // namespace trireme::cli
