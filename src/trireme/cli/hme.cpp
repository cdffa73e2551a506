// trireme hme: hierarchical mixtures of experts on CSV files.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/new_file.h"
#include "trireme/base/permutation.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/science/decision_tree.h"
#include "trireme/science/hme_drawing.h"
#include "trireme/science/hme_fit.h"
#include "trireme/science/robot_arm.h"

namespace trireme::cli {
namespace {

using science::Family;
using science::Hme;
using science::Samples;

struct HmeFitOptions {
  std::filesystem::path data, save, draw;
  science::ColumnChoice columns;
  int depth = 2;
  std::vector<int> branching = {2};
  double held_out = 0.2;
  bool online = false;
  science::EmOptions em;
  science::OnlineOptions recursive;
  std::vector<std::string> axes;
};

/// One number counts for every level; several are the levels themselves.
std::vector<int> tree_of(const HmeFitOptions& options, bool depth_given) {
  if (options.branching.size() == 1) {
    return std::vector<int>(static_cast<std::size_t>(options.depth), options.branching[0]);
  }
  if (depth_given && static_cast<int>(options.branching.size()) != options.depth) {
    throw ConfigError(fmt::format("--depth {} but {} numbers in --branching", options.depth, options.branching.size()),
                      "give --branching one number, or one for each level");
  }
  return options.branching;
}

struct HmeSplit {
  Samples training, held_out;
};

HmeSplit split_samples(const Samples& all, double share, std::uint64_t seed) {
  const auto held_out = static_cast<std::size_t>(share * static_cast<double>(all.count()));
  if (share > 0 && (held_out < 1 || all.count() - held_out < 2)) {
    throw ConfigError(fmt::format("{} of {} samples held out leave too few on one side", held_out, all.count()),
                      "choose another --held-out, or 0 to fit to all");
  }
  const Permutation order(Random(seed, "hme/held out"), all.count());
  std::vector<std::size_t> rows[2];
  for (std::size_t i = 0; i < all.count(); ++i) rows[i < held_out ? 1 : 0].push_back(order.at(i));
  return {.training = pick(all, rows[0]), .held_out = pick(all, rows[1])};
}

/// The first ten iterations, the last, and few between: the curve, not the list.
void print_iterations(const science::EmReport& report, std::ostream& out) {
  const std::vector<double>& values = report.log_likelihoods;
  TextTable table({{"iteration", TextTable::Align::kRight}, {"log-likelihood", TextTable::Align::kRight}});
  const std::size_t every = std::max<std::size_t>(1, values.size() / 20);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i < 10 || i % every == 0 || i + 1 == values.size()) {
      table.add({fmt::format("{}", i), fmt::format("{:.6f}", values[i])});
    }
  }
  fmt::print(out, "{}{} after {} iterations, start {} of those tried\n", table.text(),
             report.converged ? "converged" : "not converged", values.size() - 1, report.restart + 1);
  if (report.ridge.systems > 0) {
    fmt::print(out, "{} singular systems were solved with a ridge of at most {:.1e}\n", report.ridge.systems,
               report.ridge.largest);
  }
  if (report.floored_variances > 0) {
    fmt::print(out, "{} variances are at their floor: experts that fit their samples exactly\n",
               report.floored_variances);
  }
}

struct HmeRow {
  std::string name;
  std::size_t parameters;
  science::Quality training, held_out;
};

template <typename Model>
HmeRow row_of(std::string name, std::size_t parameters, const Model& model, const HmeSplit& split) {
  return {.name = std::move(name),
          .parameters = parameters,
          .training = evaluate(model, split.training),
          .held_out = split.held_out.count() == 0 ? science::Quality{} : evaluate(model, split.held_out)};
}

void print_rows(const std::vector<HmeRow>& rows, const HmeSplit& split, Family family, std::ostream& out) {
  using Align = TextTable::Align;
  const std::string error = family == Family::kGaussian ? "relative error" : "error rate";
  TextTable table({{"model"},
                   {"parameters", Align::kRight},
                   {"log-likelihood", Align::kRight},
                   {error, Align::kRight},
                   {"held-out log-likelihood", Align::kRight},
                   {"held-out " + error, Align::kRight}});
  const bool held_out = split.held_out.count() > 0;
  for (const HmeRow& row : rows) {
    table.add({row.name, fmt::format("{}", row.parameters), fmt::format("{:.4f}", row.training.log_likelihood),
               fmt::format("{:.4f}", row.training.error),
               held_out ? fmt::format("{:.4f}", row.held_out.log_likelihood) : "–",
               held_out ? fmt::format("{:.4f}", row.held_out.error) : "–"});
  }
  fmt::print(out, "\n{}{} samples fitted to, {} held out; log-likelihood: mean a sample, in nats\n", table.text(),
             split.training.count(), split.held_out.count());
}

std::vector<std::size_t> drawn_inputs(const Hme& model, const std::vector<std::string>& axes) {
  if (axes.empty()) {
    std::vector<std::size_t> inputs = science::inputs_by_gates(model);
    inputs.resize(std::min<std::size_t>(inputs.size(), 2));
    return inputs;
  }
  std::vector<std::size_t> inputs;
  for (const std::string& name : axes) {
    const auto found = std::ranges::find(model.columns.inputs, name);
    if (found == model.columns.inputs.end()) {
      throw ConfigError(fmt::format("--axes: no input \"{}\"{}", name, did_you_mean(name, model.columns.inputs)),
                        fmt::format("the inputs are {}", listed(model.columns.inputs)));
    }
    inputs.push_back(static_cast<std::size_t>(found - model.columns.inputs.begin()));
  }
  return inputs;
}

void fit_hme(const HmeFitOptions& options, bool depth_given, std::ostream& out) {
  const std::vector<int> tree = tree_of(options, depth_given);
  const science::Table table = science::read_csv(options.data);
  const science::Columns columns = science::choose_columns(table, options.columns);
  const HmeSplit split = split_samples(to_samples(table, columns), options.held_out, options.em.seed);
  science::EmReport report;
  Hme model;
  if (options.online) {
    model = fit_online(columns, tree, split.training, options.em, options.recursive);
  } else {
    model = fit_by_em(columns, tree, split.training, options.em, &report);
    print_iterations(report, out);
  }
  const Hme linear = fit_by_em(columns, {}, split.training, options.em);
  const science::DecisionTree peer = fit_tree(columns.family, split.training, model.experts.size());
  const std::size_t leaves = peer.leaves(), outputs = columns.outputs();
  std::vector<HmeRow> rows;
  rows.push_back(row_of(columns.family == Family::kGaussian ? "linear" : "softmax regression", linear.parameters(),
                        linear, split));
  rows.push_back(
      row_of(fmt::format("decision tree, {} leaves", leaves), 2 * (leaves - 1) + leaves * outputs, peer, split));
  rows.push_back(
      row_of(fmt::format("mixture of {} experts, {}", model.experts.size(), options.online ? "on-line" : "EM"),
             model.parameters(), model, split));
  print_rows(rows, split, columns.family, out);
  if (!options.save.empty()) {
    write_text_file(options.save, to_json(model));
    fmt::print(out, "saved to {}\n", options.save.string());
  }
  if (!options.draw.empty()) {
    const std::vector<std::size_t> inputs = drawn_inputs(model, options.axes);
    const bool page = options.draw.extension() == ".html";
    write_text_file(options.draw, page ? regions_page(model, split.training, inputs, report.log_likelihoods)
                                       : draw_regions(model, split.training, inputs, true));
    fmt::print(out, "drawn to {}\n", options.draw.string());
  }
}

void add_hme_fit(Command& hme, Context& context) {
  Command& command = hme.add_subcommand(
      "fit",
      "Fit a mixture to a CSV file; prints its likelihood beside a linear fit and a decision tree of the same size");
  const auto options = std::make_shared<HmeFitOptions>();  // shared with the callback, which outlives this function
  command.add_option("DATA", options->data, "CSV file; its first line names the columns").required();
  command.add_option("--target", options->columns.targets, "Column to predict; several for several outputs")
      .delimiter(',')
      .type_name("COLUMN")
      .required();
  command.add_option("--inputs", options->columns.inputs, "Columns to predict from [default: all others]")
      .delimiter(',')
      .type_name("COLUMN");
  command.add_flag("--classes", options->columns.classes, "Numbers in the target are names of classes");
  const Option depth = command.add_option("--depth", options->depth, "Levels of gates; 0 is one expert").within(0, 12);
  command.add_option("--branching", options->branching, "Branches of a gate; a list for each level [default: 2]")
      .delimiter(',')
      .type_name("N,...");
  command.add_flag("--online", options->online, "One sample at a time, by recursive least squares, instead of EM");
  command.add_option("--forgetting", options->recursive.forgetting, "--online: forgetting factor at the start")
      .within(0.01, 1);
  command
      .add_option("--annealing", options->recursive.annealing,
                  "--online: 1 - forgetting factor shrinks by this every 1000 samples")
      .within(0, 1);
  command.add_option("--epochs", options->recursive.epochs, "--online: passes over the data").positive();
  command.add_option("--iterations", options->em.iterations, "EM: iterations at most").not_negative();
  command.add_option("--tolerance", options->em.tolerance, "EM: ends when the mean log-likelihood gains less")
      .not_negative();
  command.add_option("--irls", options->em.irls_steps, "EM: IRLS steps an iteration, for gates and classifying experts")
      .positive();
  command.add_option("--restarts", options->em.restarts, "EM: random starts, of which the likeliest counts").positive();
  command.add_option("--held-out", options->held_out, "Share of the samples that is not fitted to").within(0, 0.9);
  command.add_option("--seed", options->em.seed, "Of starts, and of which samples are held out");
  command.add_option("--save", options->save, "Write the model as JSON").type_name("FILE");
  command
      .add_option("--draw", options->draw,
                  "Draw the regions of the experts: FILE.svg, or FILE.html with all coefficients")
      .type_name("FILE");
  command.add_option("--axes", options->axes, "--draw: one or two inputs [default: those the gates weigh most]")
      .delimiter(',')
      .type_name("COLUMN");
  command.callback([&context, options, depth] {
    context.run = [&context, options, given = depth.given()] {
      options->recursive.seed = options->em.seed;
      fit_hme(*options, given, context.out);
      return kExitFine;
    };
  });
}

struct HmePredictOptions {
  std::filesystem::path model, data, out;
};

/// The rows as CSV: predictions, and the expert that the gates give most.
std::string predictions_csv(const Hme& model, const Samples& samples) {
  const bool gaussian = model.columns.family == Family::kGaussian;
  std::string text;
  for (const std::string& name : gaussian ? model.columns.targets : model.columns.classes) {
    text += science::csv_field(gaussian ? name : "p(" + name + ")") + ",";
  }
  text += gaussian ? "expert\n" : "class,expert\n";
  science::Forward at;
  for (std::size_t t = 0; t < samples.count(); ++t) {
    forward(model, samples.inputs.row(t), at);
    const std::vector<double> mean = mean_of(at);
    for (const double value : mean) text += fmt::format("{:.10g},", value);
    if (!gaussian) {
      const auto best = static_cast<std::size_t>(std::ranges::max_element(mean) - mean.begin());
      text += science::csv_field(model.columns.classes[best]) + ",";
    }
    const auto expert = static_cast<std::size_t>(std::ranges::max_element(at.log_path) - at.log_path.begin());
    text += expert_name(model, expert) + "\n";
  }
  return text;
}

void predict_hme(const HmePredictOptions& options, std::ostream& out) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;
  const Hme model =
      science::hme_from_json(read_text_file(options.model, kMostBytes), options.model.filename().string());
  const science::Table table = science::read_csv(options.data);
  const bool has_targets = std::ranges::all_of(model.columns.targets, [&](const std::string& name) {
    return std::ranges::find(table.names, name) != table.names.end();
  });
  const Samples samples = to_samples(table, model.columns, has_targets);
  const std::string text = predictions_csv(model, samples);
  if (options.out.empty()) {
    out << text;
    return;
  }
  write_text_file(options.out, text);
  fmt::print(out, "{} predictions written to {}\n", samples.count(), options.out.string());
  if (!has_targets) return;
  const science::Quality quality = evaluate(model, samples);
  fmt::print(out, "log-likelihood {:.6f} nats a sample, {} {:.6f}\n", quality.log_likelihood,
             model.columns.family == Family::kGaussian ? "relative error" : "error rate", quality.error);
}

void add_hme_predict(Command& hme, Context& context) {
  Command& command = hme.add_subcommand("predict", "Predict the rows of a CSV file by a saved mixture, as CSV");
  const auto options = std::make_shared<HmePredictOptions>();  // shared as above
  command.add_option("MODEL", options->model, "JSON that `trireme hme fit --save` wrote").required();
  command.add_option("DATA", options->data, "CSV file with the model's inputs").required();
  command.add_option("--out", options->out, "Write there; with targets in DATA, also print likelihood and error")
      .type_name("FILE");
  command.callback([&context, options] {
    context.run = [&context, options] {
      predict_hme(*options, context.out);
      return kExitFine;
    };
  });
}

struct HmeArmOptions {
  std::filesystem::path out;
  int rows = 20000;
  std::uint64_t seed = 1;
};

void add_hme_arm(Command& hme, Context& context) {
  Command& command = hme.add_subcommand(
      "arm",
      "Write the forward dynamics of a simulated four-joint robot arm as CSV: 12 inputs, accelerations a1 to a4");
  const auto options = std::make_shared<HmeArmOptions>();  // shared as above
  command.add_option("OUT", options->out, "CSV file").required();
  command.add_option("--rows", options->rows, "Random states and torques").within(1, 10'000'000);
  command.add_option("--seed", options->seed, "Of the states");
  command.callback([&context, options] {
    context.run = [&context, options] {
      const science::Table table = science::arm_table(static_cast<std::size_t>(options->rows), options->seed);
      std::string text = fmt::format("{}\n", fmt::join(table.names, ","));
      for (const auto& row : table.cells) text += fmt::format("{}\n", fmt::join(row, ","));
      write_text_file(options->out, text);
      fmt::print(context.out, "{} rows written to {}\n", options->rows, options->out.string());
      return kExitFine;
    };
  });
}

}  // namespace

void add_hme_command(Command& app, Context& context) {
  Command& hme = app.add_subcommand(
      "hme", "Hierarchical mixtures of experts (Jordan and Jacobs) on CSV files: a tree of gates over linear experts");
  hme.require_subcommand(1);
  add_hme_fit(hme, context);
  add_hme_predict(hme, context);
  add_hme_arm(hme, context);
}

}  // namespace trireme::cli
