// trireme unsupervised: belief networks and sparse coding (Raina, Madhavan, Ng 2009) on a table of examples.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/plugin.h"
#include "trireme/base/print.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/science/table.h"
#include "trireme/unsupervised/commands.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using unsupervised::Examples;

/// Lines of symbols 0-9 and a-z, a value each, as tests/fixtures/digits.txt has them; what follows a blank is a label.
Examples read_symbols(const fs::path& path) {
  Examples examples;
  std::istringstream lines(read_text_file(path, std::uint64_t{256} << 20));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    const std::string_view symbols = std::string_view(line).substr(0, line.find(' '));
    if (examples.rows > 0 && static_cast<std::int64_t>(symbols.size()) != examples.columns)
      throw ConfigError(fmt::format("{}:{} has {} values, the lines before it {}", path.string(), number,
                                    symbols.size(), examples.columns));
    examples.columns = static_cast<std::int64_t>(symbols.size());
    for (const char c : symbols) {
      const int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : -1;
      if (value < 0) throw ConfigError(fmt::format("{}:{}: {} is no value", path.string(), number, c), "use 0-9, a-z");
      examples.values.push_back(static_cast<float>(value));
    }
    ++examples.rows;
  }
  return examples;
}

Examples read_numbers(const fs::path& path, const std::vector<std::string>& without) {
  const science::Table table = science::read_csv(path);
  std::vector<std::size_t> columns;
  for (std::size_t i = 0; i < table.names.size(); ++i) {
    if (std::find(without.begin(), without.end(), table.names[i]) == without.end()) columns.push_back(i);
  }
  for (const std::string& name : without) table.column(name);  // an error that names those there are
  Examples examples{.rows = static_cast<std::int64_t>(table.cells.size()),
                    .columns = static_cast<std::int64_t>(columns.size())};
  for (std::size_t row = 0; row < table.cells.size(); ++row) {
    for (const std::size_t column : columns) {
      const std::string& cell = table.cells[row][column];
      char* end = nullptr;
      const float value = std::strtof(cell.c_str(), &end);
      if (end != cell.c_str() + cell.size() || !std::isfinite(value))
        throw ConfigError(
            fmt::format("{}: \"{}\" in column {} is not a number", path.string(), cell, table.names[column]),
            fmt::format("leave the column out: --without {}", table.names[column]));
      examples.values.push_back(value);
    }
  }
  return examples;
}

/// In [0, 1] by the smallest and largest value of all.
Examples read_examples(const fs::path& path, const std::vector<std::string>& without) {
  Examples examples = path.extension() == ".csv" ? read_numbers(path, without) : read_symbols(path);
  if (examples.rows == 0 || examples.columns == 0)
    throw ConfigError(fmt::format("{} has no example", path.string()), "give a .csv, or lines of symbols");
  const auto [least, most] = std::minmax_element(examples.values.begin(), examples.values.end());
  const float low = *least, range = *most > *least ? *most - *least : 1;
  for (float& value : examples.values) value = (value - low) / range;
  return examples;
}

const unsupervised::Commands& load_unsupervised() {
  const Plugin library = Plugin::load("runtime");
  const auto* const commands = library.function<const unsupervised::Commands*()>(unsupervised::kEntry)();
  if (commands->version != unsupervised::kVersion)
    throw ConfigError(fmt::format("{} offers version {} of its commands, this program needs {}", library.path(),
                                  commands->version, unsupervised::kVersion),
                      "build and install program and libraries together");
  return *commands;
}

struct UnsupervisedData {
  fs::path file;
  std::vector<std::string> without;
  void add_to(Command& command) {
    command.add_option("DATA", file, "a .csv file of numbers, or lines of symbols 0-9 a-z, a value each").required();
    command.add_option("--without", without, "columns of a .csv file to leave out, such as a label")
        .type_name("COLUMN");
  }
};

struct DbnOptions {
  UnsupervisedData data;
  unsupervised::DbnRequest request;
};

int run_dbn(DbnOptions& options, Context& context) {
  options.request.examples = read_examples(options.data.file, options.data.without);
  fmt::print(context.out, "{} examples of {} values\n", options.request.examples.rows,
             options.request.examples.columns);
  options.request.each = [&](int layer, int epoch, double error, double reconstruction) {
    fmt::print(context.out, "layer {}  epoch {:>3}  error {:.6f}  reconstruction {:.6f}\n", layer, epoch + 1, error,
               reconstruction);
  };
  const unsupervised::DbnResult result = load_unsupervised().dbn(options.request);
  for (std::size_t layer = 0; layer < result.after.size(); ++layer)
    fmt::print(context.out, "layer {}: mean squared error of reconstruction from {:.6f} to {:.6f}\n", layer,
               result.before[layer], result.after[layer]);
  fmt::print(context.out, "{} parameters, {:.3g} s\n", short_count(static_cast<double>(result.parameters)),
             result.seconds);
  return kExitFine;
}

struct SparseCodeOptions {
  UnsupervisedData data;
  unsupervised::SparseCodeRequest request;
};

int run_sparse_code(SparseCodeOptions& options, Context& context) {
  options.request.examples = read_examples(options.data.file, options.data.without);
  fmt::print(context.out, "{} examples of {} values\n", options.request.examples.rows,
             options.request.examples.columns);
  options.request.each = [&](int round, double activations, double bases, double active) {
    fmt::print(context.out, "round {:>3}  objective {:.4f} by activations, {:.4f} by bases  {:.1f} % active\n",
               round + 1, activations, bases, 100 * active);
  };
  const unsupervised::SparseCodeResult result = load_unsupervised().sparse_code(options.request);
  fmt::print(context.out,
             "objective {:.4f}, {:.1f} % of activations are not 0\noptimality is missed by at most {:.3g}\n"
             "{} iterations, {:.3g} s\n",
             result.objective, 100 * result.active, result.residual, result.iterations, result.seconds);
  return kExitFine;
}

}  // namespace

void add_unsupervised_command(Command& app, Context& context) {
  Command& command =
      app.add_subcommand("unsupervised", "Belief networks and sparse coding on a table of examples (Raina 2009)");
  command.require_subcommand(1);
  Command& dbn =
      command.add_subcommand("dbn", "A deep belief network: restricted Boltzmann machines by CD-1, greedily");
  const auto belief = std::make_shared<DbnOptions>();
  belief->data.add_to(dbn);
  dbn.add_option("--hidden", belief->request.hidden, "units of each layer, e.g. 256,64").required().delimiter(',');
  dbn.add_option("--epochs", belief->request.epochs, "of each layer").show_default().positive();
  dbn.add_option("--rate", belief->request.rate, "learning rate").show_default();
  dbn.add_option("--momentum", belief->request.momentum, "of the updates").show_default().within(0, 1);
  dbn.add_option("--batch", belief->request.batch, "examples of a step").show_default().positive();
  dbn.add_option("--seed", belief->request.seed, "of weights and draws").show_default();
  dbn.add_option("--patch", belief->request.patch,
                 "first layer: groups of units each see a patch of this side; 0: none")
      .show_default()
      .not_negative();
  dbn.add_option("--stride", belief->request.stride, "pixels between patches").show_default().positive();
  dbn.add_flag("--cuda", belief->request.cuda, "on a GPU, where the examples stay");
  dbn.footer(
      "Examples:\n"
      "  trireme unsupervised dbn tests/fixtures/digits.txt --hidden 128,32 --epochs 10\n"
      "  trireme unsupervised dbn tests/fixtures/digits.txt --hidden 144 --patch 4 --stride 2");
  dbn.callback([&context, belief] { context.run = [&context, belief] { return run_dbn(*belief, context); }; });

  Command& sparse = command.add_subcommand(
      "sparse-code", "Sparse coding: activations by parallel coordinate descent with an exact line search, then bases");
  const auto coding = std::make_shared<SparseCodeOptions>();
  coding->data.add_to(sparse);
  sparse.add_option("--bases", coding->request.bases, "vectors that examples are made of").show_default().positive();
  sparse.add_option("--beta", coding->request.beta, "weight of the activations' absolute values").show_default();
  sparse.add_option("--rounds", coding->request.rounds, "of activations, then bases").show_default().positive();
  sparse.add_option("--iterations", coding->request.iterations, "of descent in a round, at most")
      .show_default()
      .positive();
  sparse.add_option("--tolerance", coding->request.tolerance, "of the conditions of optimality").show_default();
  sparse.add_option("--seed", coding->request.seed, "of the first bases").show_default();
  sparse.add_flag("--fp64", coding->request.fp64, "compute in double");
  sparse.add_flag("--cuda", coding->request.cuda, "on a GPU, where the examples stay");
  sparse.footer("Examples:\n  trireme unsupervised sparse-code tests/fixtures/digits.txt --bases 96 --rounds 5");
  sparse.callback(
      [&context, coding] { context.run = [&context, coding] { return run_sparse_code(*coding, context); }; });
}

}  // namespace trireme::cli
