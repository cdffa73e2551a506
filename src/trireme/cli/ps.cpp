// trireme ps: what runs on parameter servers without a recipe.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/new_file.h"
#include "trireme/base/print.h"
#include "trireme/base/stopwatch.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cli/ps_nodes.h"
#include "trireme/ps/consistency.h"
#include "trireme/ps/lasso.h"

namespace trireme::cli {
namespace {

struct PsLassoOptions {
  std::filesystem::path data, save;
  std::string tau = "1";
  bool zstd = false, no_key_caching = false, no_kkt = false, serial = false;
  PsNodeOptions nodes;
  ps::LassoOptions solver;
};

std::uint64_t parse_tau(const std::string& text) {
  if (text == "inf") return ps::kEventual;
  if (text.empty() || text.size() > 6 ||
      !std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; }))
    throw ConfigError(fmt::format("--tau {} is neither a number of clocks nor inf", text),
                      "0 is sequential, inf eventual");
  return std::stoull(text);
}

int run_ps_lasso(PsLassoOptions& options, std::ostream& out) {
  const formats::SparseSamples samples = formats::read_libsvm(options.data);
  options.solver.tau = parse_tau(options.tau);
  options.solver.filters.key_caching = !options.no_key_caching;
  options.solver.filters.encoding = options.zstd ? ps::Encoding::kZstd : ps::Encoding::kRaw;
  options.solver.kkt_filter = !options.no_kkt;
  ps::check_lasso(samples, options.solver);
  const auto begin = std::chrono::steady_clock::now();
  ps::LassoResult result;
  run_ps_nodes(ps::lasso_mailboxes(options.solver), options.nodes,
               [&](comm::Mailbox& mailbox) { ps::run_lasso(mailbox, samples, options.solver, result); });
  if (result.weights.empty()) return kExitFine;  // the worker that tells is on another rank
  fmt::print(out, "{} samples, {} features, {:.1f} of them in a sample\n", samples.count(), samples.feature_count,
             static_cast<double>(samples.values.size()) / static_cast<double>(samples.count()));
  fmt::print(out, "objective {:.9g} with {} features that are not 0, {} after {} checks and {:.2f} s\n",
             result.objective, result.nonzeros(), result.converged ? "converged" : "NOT converged", result.checks,
             seconds_since(begin));
  fmt::print(out, "optimality conditions hold to {:.1e}; staleness {} at most\n", result.violation, result.most_stale);
  fmt::print(out, "KKT filter: {} of {} keys pushed; filters: {} of {} bytes (worker 0)\n", result.pushed_keys,
             result.all_keys, result.sent_bytes, result.raw_bytes);
  if (options.serial) {
    const ps::LassoResult serial =
        ps::solve_lasso_serially(samples, options.solver.lambda, options.solver.tolerance / 10);
    double most = 0;
    for (std::size_t i = 0; i < serial.weights.size(); ++i)
      most = std::max(most, std::abs(serial.weights[i] - result.weights[i]));
    fmt::print(out, "serial solver: objective {:.9g}, weights differ by {:.1e} at most\n", serial.objective, most);
  }
  if (!options.save.empty()) save_weights(result.weights, options.save, out);
  return result.converged ? kExitFine : kExitFailed;
}

void add_ps_lasso(Command& ps, Context& context) {
  Command& command = ps.add_subcommand(
      "lasso", "L1-regularised logistic regression on a libsvm file, by delayed block proximal gradient");
  const auto options = std::make_shared<PsLassoOptions>();
  ps::LassoOptions& solver = options->solver;
  command.add_option("DATA", options->data, "libsvm file: LABEL INDEX:VALUE ... a line, two labels").required();
  command.add_option("--lambda", solver.lambda, "Weight of the L1 norm; the loss is summed over samples").positive();
  command.add_option("--tolerance", solver.tolerance, "Of the optimality conditions (KKT)").positive();
  command.add_option("--servers", solver.servers, "Parameter servers").positive();
  command.add_option("--workers", solver.workers, "Workers, each with its part of the samples").positive();
  command.add_option("--copies", solver.copies, "Servers that have each range").positive();
  command.add_option("--blocks", solver.blocks, "Blocks of features, one a clock").positive();
  command.add_option("--tau", options->tau, "Bounded delay: clocks that may be open before the next; 0 is sequential")
      .type_name("CLOCKS|inf");
  command.add_flag("--no-kkt-filter", options->no_kkt, "Push features that stay at 0, too");
  command.add_flag("--no-key-caching", options->no_key_caching, "Send the keys with every message");
  command.add_flag("--zstd", options->zstd, "Compress values, without loss");
  add_ps_node_options(command, options->nodes);
  command.add_flag("--serial", options->serial, "Compare with the serial solver");
  command.add_option("--save", options->save, "Write INDEX WEIGHT of features that are not 0").type_name("FILE");
  command.callback(
      [&context, options] { context.run = [&context, options] { return run_ps_lasso(*options, context.out); }; });
}

struct PsWordsOptions {
  std::vector<std::string> texts;
  std::filesystem::path save;
  std::int64_t least = 3;
};

/// Lines of text files as bags of words: lines of the first are +1, all others -1.
int run_ps_words(const PsWordsOptions& options, std::ostream& out) {
  if (options.texts.size() < 2)
    throw ConfigError("one class of lines is no classification", "name two text files or more");
  std::vector<std::pair<double, std::map<std::string, int>>> lines;
  std::map<std::string, std::int64_t> counts;
  for (std::size_t file = 0; file < options.texts.size(); ++file) {
    const MappedFile mapped(options.texts[file]);
    std::map<std::string, int> bag;
    std::string word;
    const auto end_word = [&] {
      if (!word.empty()) ++bag[std::exchange(word, {})];
    };
    const auto end_line = [&] {
      end_word();
      for (const auto& [each, count] : bag) ++counts[each];
      if (!bag.empty()) lines.emplace_back(file == 0 ? 1.0 : -1.0, std::exchange(bag, {}));
    };
    for (const char c : mapped.text()) {
      if (c == '\n') {
        end_line();
      } else if (std::isalpha(static_cast<unsigned char>(c)) != 0 || (static_cast<unsigned char>(c) & 0x80) != 0) {
        word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      } else {
        end_word();
      }
    }
    end_line();
  }
  std::map<std::string, std::uint32_t> index;
  for (const auto& [word, count] : counts) {
    if (count >= options.least) index.emplace(word, static_cast<std::uint32_t>(index.size()));
  }
  formats::SparseSamples samples;
  samples.feature_count = index.size();
  for (const auto& [label, bag] : lines) {
    double squares = 0;
    std::map<std::uint32_t, double> row;
    for (const auto& [word, count] : bag) {
      if (const auto found = index.find(word); found != index.end()) {
        row[found->second] = count;
        squares += static_cast<double>(count) * count;
      }
    }
    if (row.empty()) continue;
    for (const auto& [feature, count] : row) {
      samples.features.push_back(feature);
      samples.values.push_back(count / std::sqrt(squares));
    }
    samples.rows.push_back(samples.features.size());
    samples.labels.push_back(label);
  }
  write_text_file(options.save, formats::libsvm_text(samples));
  std::string names;
  for (const auto& [word, number] : index) names += word + "\n";
  write_text_file(options.save.string() + ".words", names);
  fmt::print(out, "{} lines, {} words; line i of {}.words is feature i\n", samples.count(), index.size(),
             options.save.string());
  return kExitFine;
}

void add_ps_words(Command& ps, Context& context) {
  Command& command = ps.add_subcommand("words", "Lines of text files as a libsvm file: which file is a line of?");
  const auto options = std::make_shared<PsWordsOptions>();
  command.add_option("TEXT", options->texts, "Text files; lines of the first have label +1, others -1").required();
  command.add_option("--save", options->save, "The libsvm file; FILE.words gets the vocabulary")
      .type_name("FILE")
      .required();
  command.add_option("--min-df", options->least, "Lines that a word must be in, to be a feature").positive();
  command.callback(
      [&context, options] { context.run = [&context, options] { return run_ps_words(*options, context.out); }; });
}

}  // namespace

void add_ps_command(Command& app, Context& context) {
  Command& ps =
      app.add_subcommand("ps", "Parameter servers and shards: regression on them, and drills with killed servers");
  ps.require_subcommand(1);
  add_ps_lasso(ps, context);
  add_ps_lbfgs(ps, context);
  add_ps_words(ps, context);
  add_ps_drill(ps, context);
  add_ps_spot(ps, context);
}

}  // namespace trireme::cli
