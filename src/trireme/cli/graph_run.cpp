// trireme graph run: a graph with a strategy or with pipeline stages, forward and backward, on ranks.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/graph_options.h"
#include "trireme/cli/runtime_commands.h"
#include "trireme/cli/schedule/options.h"
#include "trireme/cli/start_ranks.h"
#include "trireme/cli/training_images.h"
#include "trireme/plan/graph/annotate.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/models.h"
#include "trireme/plan/graph/predict.h"
#include "trireme/plan/graph/random_strategy.h"
#include "trireme/plan/graph/search/cost_table.h"

namespace trireme::cli {

std::string graph_file_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw IoError("could not read " + path, "is it there, and may it be read?");
  return text.str();
}

bool has_strategy(const GraphOptions& options) {
  const bool said = !options.layout.empty() || !options.annotations.empty();
  if (said && options.mesh.empty()) throw ConfigError("a layout needs a mesh", "add --mesh dp=2,tp=4");
  return said || !options.strategy.empty();
}

pg::Strategy strategy_of(const GraphOptions& options, const pg::Graph& forward) {
  if (!options.strategy.empty())
    return pg::parse_strategy(forward, graph_file_text(options.strategy), options.strategy);
  std::string axes = options.mesh;
  std::ranges::replace(axes, ',', ' ');
  const layout::Mesh mesh = layout::parse_mesh(axes);
  if (!options.layout.empty()) return pg::mesh_tensorflow(forward, mesh, pg::parse_mesh_layout(options.layout));
  return pg::propagate(forward, mesh, pg::parse_annotations(options.annotations));
}

std::optional<pg::StagedPlan> staged_of(const GraphOptions& options, const pg::Graph& forward) {
  if (options.strategy.empty()) return std::nullopt;
  const std::string text = graph_file_text(options.strategy);
  if (!pg::is_staged_text(text)) return std::nullopt;
  return pg::parse_staged(forward, text, options.strategy);
}

std::string graph_of_plan(const std::string& path) {
  for (const std::string& line : split(graph_file_text(path), '\n')) {
    const std::vector<std::string> words = pg::StrategyLines::words_of(line);
    if (words.empty()) continue;
    if (words.size() == 2 && (words[0] == "strategy" || words[0] == "pipeline")) return words[1];
    break;
  }
  throw ConfigError(path + " does not begin with \"strategy GRAPH\" or \"pipeline GRAPH\"",
                    "take a file that trireme search -o has written");
}

namespace {

/// How far a gradient may be from the whole graph's: rounding of sums in another order.
double tolerance(pg::DType dtype) { return dtype == pg::DType::kFp64 ? 1e-9 : dtype == pg::DType::kBf16 ? 0.1 : 2e-3; }

/// The strategies to run: one that is said, or many that are drawn; or a plan with stages.
struct RunPlans {
  std::vector<pg::Strategy> strategies;
  std::vector<pg::StagedPlan> staged;
  int ranks() const { return strategies.empty() ? staged[0].ranks() : strategies[0].mesh.ranks(); }
};

RunPlans plans_to_run(const GraphOptions& options, const pg::Graph& forward) {
  std::string axes = options.mesh;
  std::ranges::replace(axes, ',', ' ');
  if (options.random > 0) {
    if (axes.empty()) throw ConfigError("random strategies need a mesh", "add --mesh a=2,b=2");
    RunPlans drawn;
    const pg::Graph both = pg::with_backward(forward);
    for (int i = 0; i < options.random; ++i)
      drawn.strategies.push_back(
          pg::random_strategy(both, layout::parse_mesh(axes), options.seed + static_cast<std::uint64_t>(i)));
    return drawn;
  }
  if (!has_strategy(options)) return {{pg::replicated(forward, layout::parse_mesh(axes))}, {}};
  if (options.small && !options.strategy.empty()) {
    // What was found for the model as published, on its small sibling: operator by operator, dimension by dimension.
    const pg::Graph published = pg::open_graph(options.graph, options.batch);
    if (const auto plan = staged_of(options, published)) return {{}, {pg::transferred(published, *plan, forward)}};
    return {{pg::transferred(published, strategy_of(options, published), forward)}, {}};
  }
  if (auto plan = staged_of(options, forward)) return {{}, {std::move(*plan)}};
  return {{strategy_of(options, forward)}, {}};
}

std::string where_it_ran(const RunPlans& plans, std::size_t index) {
  if (index < plans.strategies.size())
    return fmt::format("{} ranks (mesh {})", plans.ranks(), layout::to_text(plans.strategies[index].mesh));
  const pg::StagedPlan& plan = plans.staged[index - plans.strategies.size()];
  return fmt::format("{} ranks ({}, {}, {})", plan.ranks(), counted(plan.stages.size(), "stage"),
                     fmt::format("{} micro-batches", plan.micros), plan.schedule);
}

/// What predictions are made with.
struct Predictor {
  cost::Hardware hardware;
  cost::Arithmetic arithmetic = cost::Arithmetic::kFp32;
  pg::OperatorProfile profile = {};
};

std::optional<Predictor> predictor_of(const GraphOptions& options) {
  if (options.cluster.empty()) {
    if (options.measure || !options.profile.empty())
      throw ConfigError("what is sent between ranks is predicted from a cluster file", "add --cluster my.toml");
    return std::nullopt;
  }
  if (options.dtype == pg::DType::kFp64)
    throw ConfigError("cluster files have no rates for fp64", "predict with --dtype fp32");
  Predictor predictor{
      .hardware = cost::load_hardware(options.cluster),
      .arithmetic = options.dtype == pg::DType::kBf16 ? cost::Arithmetic::kBf16 : cost::Arithmetic::kFp32};
  if (auto profile = profile_of(options.profile)) predictor.profile = std::move(*profile);
  return predictor;
}

pg::Prediction prediction_of(const Predictor& predictor, const RunPlans& plans, std::size_t index,
                             const pg::Graph& forward) {
  const pg::OperatorProfile* profile = predictor.profile.seconds.empty() ? nullptr : &predictor.profile;
  if (index < plans.strategies.size()) {
    const pg::Strategy& strategy = plans.strategies[index];
    return pg::predict(pg::with_backward(forward), strategy,
                       pg::Pricing(predictor.hardware, strategy.mesh, predictor.arithmetic, profile));
  }
  return pg::predict(forward, plans.staged[index - plans.strategies.size()],
                     pg::Pricing(predictor.hardware, layout::Mesh(), predictor.arithmetic, profile));
}

/// "predicted 12 ms (computes 9 ms, ...), measured 13 ms, the median of 5 steps: 7.7 % below".
std::string prediction_line(const Predictor& predictor, const pg::Prediction& predicted,
                            const spmd::RunReport& report) {
  const double off = predicted.seconds / report.median_seconds - 1;
  const std::size_t steps = std::max<std::size_t>(1, report.losses.size() - 1);
  std::string text =
      fmt::format("predicted for {}: {} a step (computes {}, sends {}, updates {}", predictor.hardware.cluster.name,
                  short_seconds(predicted.seconds), short_seconds(predicted.compute_seconds),
                  short_seconds(predicted.communication_seconds), short_seconds(predicted.update_seconds));
  if (predicted.waiting_seconds > 0) text += fmt::format(", waits {}", short_seconds(predicted.waiting_seconds));
  if (predicted.measured + predicted.priced > 0)
    text += fmt::format("; {} of {} operators and conversions were profiled", predicted.measured,
                        predicted.measured + predicted.priced);
  return text + fmt::format(")\nmeasured: {} a step, the median of {}; the prediction is {:.1f} % {}\n",
                            short_seconds(report.median_seconds), steps, 100 * std::abs(off),
                            off < 0 ? "too short" : "too long");
}

/// The graphs and splits of all plans, for their operators to be measured.
spmd::ProfileRequest tasks_of(const RunPlans& plans, const pg::Graph& forward, const GraphOptions& options) {
  spmd::ProfileRequest request{.tasks = {}, .seconds = options.profile_seconds};
  for (const pg::Strategy& strategy : plans.strategies) request.tasks.push_back({pg::with_backward(forward), strategy});
  for (const pg::StagedPlan& plan : plans.staged) {
    if (const auto problems = pg::find_problems(forward, plan); !problems.empty())
      throw ConfigError(problems.front(), "change its line of the plan");
    pg::StagedGraph staged = pg::stage_graphs(pg::micro_graph(pg::with_backward(forward), plan.micros).graph, plan);
    for (pg::Stage& stage : staged.stages) request.tasks.push_back({std::move(stage.graph), std::move(stage.strategy)});
  }
  return request;
}

std::string run_report(const spmd::RunRequest& request, const std::string& where, const spmd::RunReport& report) {
  std::string text = fmt::format("{} on {}: {} collectives of {}{}, at most {} on a rank, {} a step\n",
                                 request.forward.name, where, report.collectives, short_bytes(report.bytes),
                                 report.messages == 0 ? ""
                                                      : fmt::format(", {} messages of {} between stages",
                                                                    report.messages, short_bytes(report.message_bytes)),
                                 short_bytes(report.peak_bytes), short_seconds(report.seconds));
  const std::size_t every = std::max<std::size_t>(1, report.losses.size() / 20);  // about twenty lines
  for (std::size_t i = 0; i < report.losses.size(); ++i) {
    if (i % every != 0 && i + 1 != report.losses.size()) continue;
    text += fmt::format("step {}: loss {:.9f}", i, report.losses[i]);
    if (i < report.reference.size())
      text += fmt::format(", whole {:.9f}, difference {:.1e}", report.reference[i],
                          std::abs(report.losses[i] - report.reference[i]));
    text += '\n';
  }
  if (report.accuracy >= 0)
    text += fmt::format("{} of {} test images are named right: {:.2f} %\n",
                        std::lround(report.accuracy * static_cast<double>(request.test.labels.size())),
                        request.test.labels.size(), 100 * report.accuracy);
  if (request.verify) {
    text += fmt::format("gradients of {} parameters: largest difference {:.1e} ({})\n", report.parameters, report.worst,
                        report.worst_parameter.empty() ? "none" : report.worst_parameter);
    text += report.deviations.empty() ? "collectives: as listed, to the byte\n" : "";
    for (const std::string& what : report.deviations) text += "collectives: " + what + "\n";
  }
  return text;
}

bool holds(const spmd::RunRequest& request, const spmd::RunReport& report, double most) {
  bool fine = report.worst <= most && report.deviations.empty();
  for (std::size_t i = 0; i < report.reference.size(); ++i)
    fine = fine && std::abs(report.losses[i] - report.reference[i]) <= most * std::max(1.0, report.reference[i]);
  return fine || !request.verify;
}

spmd::DescentOptions descent_of(const GraphOptions& options) {
  spmd::DescentOptions descent{.learning_rate = options.learning_rate,
                               .momentum = options.momentum,
                               .weight_decay = options.weight_decay,
                               .warmup_steps = options.warmup,
                               .warmup_from = options.warmup_from};
  if (options.decay_at.empty()) return descent;
  for (const std::string& word : split(options.decay_at, ',')) {
    std::int64_t step = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), step);
    if (error != std::errc() || end != word.data() + word.size() || step < 0)
      throw ConfigError(fmt::format("--decay-at {}: \"{}\" is no step", options.decay_at, word),
                        "write steps separated by commas: 600,900");
    descent.decay_at.push_back(step);
  }
  return descent;
}

}  // namespace

void run_graph(const GraphOptions& options, Context& context) {
  pg::Graph forward = pg::with_dtype(
      options.small ? pg::small_model(options.graph, options.batch) : pg::open_graph(options.graph, options.batch),
      options.dtype);
  if (options.batch_norm == "per-rank") forward = pg::with_local_norms(std::move(forward));
  const RunPlans plans = plans_to_run(options, forward);
  const spmd::Commands& commands = load_spmd();
  spec::Recipe recipe;
  recipe.comm.ranks = plans.ranks();
  if (options.ranks > 0 && options.ranks != *recipe.comm.ranks)
    throw ConfigError(fmt::format("the strategy is for {} ranks, not for {}", *recipe.comm.ranks, options.ranks),
                      fmt::format("say --ranks {}, or nothing", *recipe.comm.ranks));
  spmd::RunRequest request{.forward = forward,
                           .strategies = plans.strategies,
                           .staged = plans.staged,
                           .steps = options.steps,
                           .descent = descent_of(options),
                           .seed = options.seed,
                           .verify = options.verify,
                           .cuda = options.device == "cuda",
                           .cuda_graphs = options.cuda_graphs,
                           .zero_gamma = options.zero_gamma,
                           .local_ranks = local_ranks(recipe)};
  if (!options.images.empty()) {
    LabelledImages images = read_images(options.images);
    request.train = std::move(images.train);
    request.test = std::move(images.test);
  }
  std::optional<Predictor> predictor = predictor_of(options);
  std::string text;
  int failed = 0;
  double worst = 0;
  bool is_first = false;  // of processes only one reports
  start_ranks(recipe, [&](comm::Rank& rank) {
    if (options.measure) {
      spmd::ProfileRequest tasks = tasks_of(plans, forward, options);
      tasks.local_ranks = request.local_ranks;
      pg::OperatorProfile measured = commands.profile(tasks, rank);
      if (rank.rank() == 0) predictor->profile.seconds.merge(measured.seconds);
    }
    const std::vector<spmd::RunReport> reports = commands.run(request, rank);
    if (rank.rank() != 0) return;
    is_first = true;
    for (std::size_t i = 0; i < reports.size(); ++i) {
      const bool fine = holds(request, reports[i], tolerance(options.dtype));
      failed += fine ? 0 : 1;
      worst = std::max(worst, reports[i].worst);
      if (reports.size() == 1 || !fine) text += run_report(request, where_it_ran(plans, i), reports[i]);
      if (predictor && reports.size() == 1)
        text += prediction_line(*predictor, prediction_of(*predictor, plans, i, forward), reports[i]);
      if (reports.size() > 1 && !fine) text += pg::to_text(forward, plans.strategies[i]);
    }
  });
  if (is_first && plans.strategies.size() > 1)
    text +=
        fmt::format("{}: {} random strategies, {} {}; largest difference of a gradient {:.1e}\n", forward.name,
                    plans.strategies.size(), failed, options.verify ? "differ from the whole graph" : "failed", worst);
  if (!text.empty()) write_result(text, options.output, context);
  if (failed > 0)
    throw Error(
        fmt::format("{} did not compute what the whole graph computes", counted(std::size_t(failed), "strategy")));
}

std::optional<pg::OperatorProfile> profile_of(const std::string& path) {
  if (path.empty()) return std::nullopt;
  return pg::parse_profile(graph_file_text(path), path);
}

void profile_graph(const GraphOptions& options, Context& context) {
  const pg::Graph both = pg::with_backward(pg::with_dtype(
      options.small ? pg::small_model(options.graph, options.batch) : pg::open_graph(options.graph, options.batch),
      options.dtype));
  spec::Recipe recipe;
  recipe.comm.ranks = options.ranks > 0 ? options.ranks : 1;
  spmd::ProfileRequest request{.tasks = {}, .seconds = options.profile_seconds, .local_ranks = local_ranks(recipe)};
  // Stages of pipelines have meshes of fewer ranks; they work beside each other, so all ranks are busy there, too.
  for (int devices = 1; devices <= *recipe.comm.ranks; ++devices) {
    if (*recipe.comm.ranks % devices != 0) continue;
    for (pg::Strategy& strategy : pg::strategies_of_choices(both, pg::factored_mesh(devices)))
      request.tasks.push_back({both, std::move(strategy), /*conversions=*/false});
  }
  const spmd::Commands& commands = load_spmd();
  pg::OperatorProfile profile;
  start_ranks(recipe, [&](comm::Rank& rank) {
    pg::OperatorProfile measured = commands.profile(request, rank);
    if (rank.rank() == 0) profile = std::move(measured);
  });
  if (!profile.seconds.empty()) write_result(pg::to_text(profile), options.output, context);
}

void add_profile_options(Command& command, GraphOptions& options) {
  command.add_option("--ranks", options.ranks, "Ranks that work at once, as they will in training; default: 1")
      .positive()
      .type_name("N");
  command.add_option("--seconds", options.profile_seconds, "For each operator, at least three runs")
      .show_default()
      .within(0.0, 60.0)
      .type_name("S");
  add_choice<pg::DType>(command, "--dtype", options.dtype,
                        {{"bf16", pg::DType::kBf16}, {"fp32", pg::DType::kFp32}, {"fp64", pg::DType::kFp64}},
                        "to compute in");
  command.add_flag("--small", options.small, "A built-in graph with few channels and small images");
}

void add_run_options(Command& command, GraphOptions& options) {
  command.add_option("--ranks", options.ranks, "Ranks; default: as many as the strategy's mesh has")
      .positive()
      .type_name("N");
  command.add_option("--steps", options.steps, "Steps of gradient descent").show_default().positive().type_name("N");
  command.add_option("--lr", options.learning_rate, "Learning rate").show_default().not_negative();
  command.add_option("--momentum", options.momentum, "of gradient descent").show_default().not_negative();
  command
      .add_option("--weight-decay", options.weight_decay, "added to gradients; not for what norms scale and shift by")
      .show_default()
      .not_negative();
  command.add_option("--warmup", options.warmup, "Steps in which the rate grows linearly to --lr")
      .show_default()
      .not_negative()
      .type_name("STEPS");
  command.add_option("--warmup-from", options.warmup_from, "The rate of the first of them")
      .show_default()
      .not_negative();
  command.add_option("--decay-at", options.decay_at, "Steps from which on the rate is a tenth of what it was")
      .type_name("STEP,...");
  command.add_flag("--zero-gamma", options.zero_gamma,
                   "The last batch norm of each residual block begins with scales of zero");
  add_choice<std::string>(command, "--batch-norm", options.batch_norm, {{"exact", "exact"}, {"per-rank", "per-rank"}},
                          "statistics of the whole batch, or of each rank's own samples");
  command.add_option("--seed", options.seed, "of parameters, inputs and dropout").show_default();
  add_choice<pg::DType>(command, "--dtype", options.dtype,
                        {{"bf16", pg::DType::kBf16}, {"fp32", pg::DType::kFp32}, {"fp64", pg::DType::kFp64}},
                        "to compute in; bf16 has master weights of fp32");
  command
      .add_option(
          "--images", options.images,
          "Train on labelled images, and say which share of the test images (every fifth) is named right: a line "
          "each, pixels and class, as scikit-learn's digits in tests/fixtures/digits.txt; also .gz")
      .type_name("FILE");
  add_choice<std::string>(command, "--device", options.device, {{"cpu", "cpu"}, {"cuda", "cuda"}},
                          "to compute on; cuda: ranks that are processes take their node's GPUs in turn, over NCCL");
  command.add_flag(
      "--cuda-graphs", options.cuda_graphs,
      "With --device cuda on one rank: capture a step once, then replay it; graphs with dropout are not captured");
  command.add_flag(
      "--small", options.small,
      "A built-in graph with few channels and small images, that a CPU runs in a second; a strategy may be "
      "one that was found for the published size");
  command.add_option("--random", options.random, "Instead of one strategy: so many random legal ones on --mesh")
      .positive()
      .type_name("N");
  command
      .add_option("--cluster", options.cluster,
                  "Also predict a step on this cluster (trireme bench hardware writes this machine's), and say how far "
                  "off that is; give --steps 5 or more")
      .type_name("CLUSTER");
  command.add_option("--profile", options.profile, "With --cluster: operators as trireme graph profile measured them")
      .type_name("FILE");
  command.add_flag(
      "--measure-operators", options.measure,
      "With --cluster: first measure each of the plan's operators and conversions by itself, on all ranks");
  command.add_flag("--verify", options.verify,
                   "Also run the whole graph by autograd, in the same micro-batches; compare losses, every gradient, "
                   "every collective");
}

void add_strategy_options(Command& command, GraphOptions& options) {
  command
      .add_option("--strategy,--plan", options.strategy,
                  "A strategy, or a plan with pipeline stages: text as trireme search -o writes it")
      .type_name("FILE");
  command.add_option("--mesh", options.mesh, "Mesh axes, outermost first: dp=2,tp=4").type_name("AXES");
  command
      .add_option("--layout", options.layout,
                  "Mesh-TensorFlow: which axis splits a dimension wherever it occurs: n:dp,ffn:tp")
      .type_name("DIM:AXIS,...");
  command
      .add_option("--annotate", options.annotations,
                  "GShard: how some tensors are split, from which the rest follows: \"hidden groups:a; w experts:a\"")
      .type_name("TENSOR DIM:AXIS;...");
}

}  // namespace trireme::cli
