// trireme plan scaling: how large a model and how many tokens a budget of compute should buy.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/plan/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cost/hardware.h"
#include "trireme/plan/scaling.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

struct ScalingOptions {
  double flops = 0, days = 0, mfu = 0.4;
  int gpus = 0;
  std::string cluster, parameters, batch, law;
  bool json = false;
};

double budget(const ScalingOptions& options) {
  if (options.flops > 0) {
    if (options.days > 0 || options.gpus > 0)
      throw ConfigError("both --flops and devices with days are given", "give one of them");
    return options.flops;
  }
  if (options.cluster.empty() || options.days <= 0)
    throw ConfigError("no budget is given", "give --flops 1e23, or --cluster, --gpus and --days");
  const cost::Hardware hardware = cost::load_hardware(options.cluster);
  const int gpus = options.gpus > 0 ? options.gpus : hardware.cluster.gpus;
  const double bf16 = hardware.peak(cost::Arithmetic::kBf16);
  const double peak = bf16 > 0 ? bf16 : hardware.peak(cost::Arithmetic::kFp16);
  if (peak <= 0)
    throw ConfigError(fmt::format("device {} has no rate in sixteen bits", hardware.device.name), "give --flops");
  return gpus * peak * options.mfu * options.days * 86400;
}

int run(const ScalingOptions& options, Context& context) {
  const double flops = budget(options);
  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{"law"},
                   {"parameters", kRight},
                   {"tokens", kRight},
                   {"tokens/parameter", kRight},
                   {"loss", kRight},
                   {"source"}});
  ordered_json json{{"flops", flops}, {"petaflop_days", flops / plan::kPetaflopDay}, {"laws", ordered_json::array()}};
  const auto add = [&](const std::string& name, const plan::ComputeOptimal& one, const std::string& source) {
    table.add({name, short_count(one.parameters), short_count(one.tokens),
               fmt::format("{:.1f}", one.tokens / one.parameters), fmt::format("{:.4f}", one.loss), source});
    json["laws"].push_back({{"name", name},
                            {"parameters", one.parameters},
                            {"tokens", one.tokens},
                            {"loss", one.loss},
                            {"source", source}});
  };
  std::vector<plan::LossLaw> laws(plan::loss_laws().begin(), plan::loss_laws().end());
  if (!options.law.empty()) laws.insert(laws.begin(), plan::read_loss_law(options.law));
  for (const plan::LossLaw& law : laws) add(law.name, law.best(flops), law.source);
  std::optional<double> batch;
  if (!options.batch.empty()) {
    batch = static_cast<double>(parse_count(options.batch));
    if (*batch < 1) throw ConfigError("--batch must be at least 1 token", "for example --batch 4M");
  }
  const plan::kaplan::Budget kaplan = plan::kaplan::best(flops, batch);
  add("Kaplan", {kaplan.parameters, kaplan.tokens, kaplan.loss}, "Kaplan et al. 2020, without embeddings");
  if (!options.parameters.empty()) {
    const auto parameters = static_cast<double>(parse_count(options.parameters));
    if (parameters <= 0) throw ConfigError("--parameters must be above 0", "for example --parameters 8B");
    for (const plan::LossLaw& law : laws)
      add(fmt::format("{}, given size", law.name), law.with_parameters(flops, parameters), law.source);
  }
  const double critical = plan::kaplan::critical_batch(kaplan.loss);
  json["critical_batch_tokens"] = critical;
  json["kaplan"] = {{"min_flops", kaplan.min_flops},
                    {"batch_tokens", kaplan.batch_tokens},
                    {"steps", kaplan.steps},
                    {"loss_far_below_critical_batch", plan::kaplan::loss_of_compute(flops)}};
  if (options.json) {
    context.out << json.dump(2) << '\n';
    return kExitFine;
  }
  fmt::print(context.out, "{:.3g} FLOPs ({:.4g} PF-days)\n{}", flops, flops / plan::kPetaflopDay, table.text("  "));
  fmt::print(
      context.out,
      "  6 N D is the budget in every row. Kaplan's is a run at {}batch of {} tokens, {} steps: its loss takes\n"
      "  C_min = {:.3g} FLOPs far below the critical batch ({} tokens), and C_min (1 + B / B_crit) here. All of\n"
      "  the budget far below it would give {:.4f}; see trireme plan batch --loss {:.2f}\n",
      batch ? "the given " : "the critical ", short_count(kaplan.batch_tokens), short_count(kaplan.steps),
      kaplan.min_flops, short_count(critical), plan::kaplan::loss_of_compute(flops), kaplan.loss);
  return kExitFine;
}

}  // namespace

void add_plan_scaling(Command& plan, Context& context) {
  Command& command = plan.add_subcommand(
      "scaling", "Given compute, or devices and days: the model size and tokens to choose, and the loss to expect");
  const auto options = std::make_shared<ScalingOptions>();  // shared with the callback, which outlives this function
  command.add_option("--flops", options->flops, "Compute budget in FLOPs, e.g. 3.14e23").positive().type_name("FLOPS");
  command.add_option("--cluster", options->cluster, "The devices, by name or the path of a file").type_name("NAME");
  command.add_option("--gpus", options->gpus, "How many; default: all of the cluster").positive().type_name("N");
  command.add_option("--days", options->days, "For how long").positive().type_name("N");
  command.add_option("--mfu", options->mfu, "Model FLOPs utilisation (trireme plan predicts it); default 0.4")
      .within(0.001, 1.0)
      .type_name("SHARE");
  command.add_option("--parameters", options->parameters, "Also with this number of parameters, e.g. 8B")
      .type_name("N");
  command
      .add_option("--batch", options->batch,
                  "Kaplan: batch in tokens, e.g. 4M; default: the critical batch of its loss")
      .type_name("TOKENS");
  command.add_option("--law", options->law, "Also by this law, a file that `trireme science fit --law` wrote")
      .type_name("FILE");
  command.add_flag("--json", options->json, "As JSON, and nothing else");
  command.footer(
      "Examples:\n  trireme plan scaling --flops 5.76e23\n"
      "  trireme plan scaling --cluster dgx-h100 --gpus 512 --days 30 --parameters 8B");
  command.callback([&context, options] { context.run = [&context, options] { return run(*options, context); }; });
}

}  // namespace trireme::cli
