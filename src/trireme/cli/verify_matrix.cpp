#include "trireme/cli/verify_matrix.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/new_file.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/cli/start_ranks.h"
#include "trireme/plan/layout_matrix.h"
#include "trireme/plan/run_setup.h"

namespace trireme::cli {
namespace {

constexpr std::size_t kLeast = 60;  // layouts of a sample; of a model with experts, those that shard them
constexpr std::uint64_t kSeed = 6;

spec::LayoutTask task_of(const spec::Recipe& recipe, int ranks) {
  const auto shape = spec::shape_of(recipe.model);
  if (!shape) {
    throw ConfigError("the layouts of a model in another folder cannot be listed",
                      "write the model's shape into the recipe, without model.init_from");
  }
  const std::int64_t rows =
      spec::hyperparameters_at(recipe.optim, recipe.lr_schedule, recipe.batch, {}).batch / recipe.data.seq_len;
  return {.shape = *shape,
          .sequence = recipe.data.seq_len,
          .batch_rows = rows,
          .micro_batch_size = recipe.train.micro_batch_size,
          .ranks = ranks};
}

spec::Recipe with_layout(spec::Recipe recipe, const plan::LayoutCase& layout) {
  recipe.layout = layout.layout;
  recipe.pipeline = layout.pipeline;
  if (recipe.model.experts.used()) {  // whose balance groups no cut of the batch may change
    recipe.train.micro_batch_size = layout.micro_batch_size;
    recipe.train.recompute = layout.recompute;
  }
  return recipe;
}

/// All of them; what the rest of the recipe does not go with is refused by the first rule that says so.
plan::LayoutMatrix layouts_of(const spec::Recipe& recipe, int ranks) {
  const spec::LayoutTask task = task_of(recipe, ranks);
  plan::LayoutMatrix matrix = plan::all_layouts(task);
  std::erase_if(matrix.cases, [&](const plan::LayoutCase& one) {
    if (one.layout.pp == 1) return false;  // without stages, rules of layouts are all there are
    const auto refusals = spec::find_refusals(plan::run_setup(with_layout(recipe, one), task.shape, {.ranks = ranks}));
    if (refusals.empty()) return false;
    matrix.refused.push_back({one.text(), fmt::format("{}: {}", refusals[0].problem.key, refusals[0].problem.reason)});
    return true;
  });
  return matrix;
}

struct Row {
  const plan::LayoutCase* layout = nullptr;
  train::VerifyResult result;
};

/// Which two features were together in a layout that was equal, or in one that was not.
class Meetings {
 public:
  explicit Meetings(const std::vector<Row>& rows) {
    for (const Row& row : rows) {
      for (const std::string& a : row.layout->features) {
        for (const std::string& b : row.layout->features) (row.result.equal ? fine_ : wrong_)[{a, b}]++;
      }
    }
  }
  std::string mark(const std::string& a, const std::string& b) const {
    if (wrong_.contains({a, b})) return "NO";
    const auto found = fine_.find({a, b});
    return found == fine_.end() ? "" : std::to_string(found->second);
  }

 private:
  std::map<std::pair<std::string, std::string>, int> fine_, wrong_;
};

/// Each feature against all before it: in how many layouts they were together.
TextTable pair_table(const std::vector<std::string>& features, const Meetings& meetings) {
  std::vector<TextTable::Column> columns{{"with"}};
  for (std::size_t i = 0; i < features.size(); ++i)
    columns.push_back({std::to_string(i + 1), TextTable::Align::kRight});
  TextTable table(columns);
  for (std::size_t i = 0; i < features.size(); ++i) {
    std::vector<std::string> cells{fmt::format("{:2} {}", i + 1, features[i])};
    for (std::size_t j = 0; j < features.size(); ++j) {
      cells.push_back(j <= i ? meetings.mark(features[i], features[j]) : "");
    }
    table.add(std::move(cells));
  }
  return table;
}

TextTable refusal_table(const std::vector<plan::RefusedLayout>& refused) {
  std::map<std::string, std::pair<int, std::string>> by_reason;
  for (const plan::RefusedLayout& one : refused) {
    auto& [count, first] = by_reason[one.reason];
    if (count++ == 0) first = one.text;
  }
  TextTable table({{"layouts", TextTable::Align::kRight}, {"for instance"}, {"why not"}});
  for (const auto& [reason, found] : by_reason) table.add({std::to_string(found.first), found.second, reason});
  return table;
}

TextTable row_table(const std::vector<Row>& rows) {
  TextTable table({{"layout"}, {"loss"}, {"gradients"}, {"weights"}, {"equal"}});
  for (const Row& row : rows) {
    double loss = 0;
    for (const train::VerifyStep& step : row.result.steps) {
      loss = std::max(loss, std::abs(step.loss - step.reference_loss) / std::abs(step.reference_loss));
    }
    table.add({row.layout->text(), fmt::format("{:.0e}", loss), fmt::format("{:.0e}", row.result.gradients.relative),
               fmt::format("{:.0e}", row.result.weights.relative), row.result.equal ? "yes" : "NO"});
  }
  return table;
}

void write_markdown(const MatrixOptions& options, const std::vector<Row>& rows, const plan::LayoutMatrix& matrix,
                    const TextTable& pairs, int ranks) {
  std::string text = fmt::format(
      "# Layouts that work together\n\n"
      "Made by `trireme verify {} --ranks {} --matrix`: each layout runs the same steps as\n"
      "one rank alone (an asynchronous schedule: as its own mathematics on one rank), and losses, the gradients of "
      "the\n"
      "first step and the weights after the last are compared. {} of {} valid layouts are here; every two features "
      "that\n"
      "some layout has together meet in at least one of them.\n\n"
      "Numbers say in how many of the layouts two features were together; columns are numbered as rows are.\n\n{}\n"
      "## Layouts\n\nLargest relative differences from one rank.\n\n{}\n## Refused\n\n{}",
      options.recipe, ranks, rows.size(), matrix.cases.size(), pairs.markdown(), row_table(rows).markdown(),
      refusal_table(matrix.refused).markdown());
  write_text_file(*options.write, text);
}

}  // namespace

bool verify_matrix(const spec::Recipe& recipe, train::VerifyRequest request, const MatrixOptions& options,
                   const train::Commands& commands, Context& context) {
  bool equal = true;
  start_ranks(recipe, [&](comm::Rank& rank) {
    const plan::LayoutMatrix matrix = layouts_of(recipe, rank.ranks());
    const auto counts = [&](const plan::LayoutCase& one) { return !recipe.model.experts.used() || one.layout.ep > 1; };
    const std::vector<plan::LayoutCase> cases =
        options.all ? matrix.cases : plan::cover_pairs(matrix.cases, kLeast, kSeed, counts);
    train::VerifyRequest all = request;
    all.recipes.clear();
    for (const plan::LayoutCase& one : cases) all.recipes.push_back(with_layout(recipe, one));
    const bool leads = rank.rank() == 0;
    if (leads && !options.json) {
      fmt::print(context.out, "{} of {} layouts of {} ranks; {} are refused\n", cases.size(), matrix.cases.size(),
                 rank.ranks(), matrix.refused.size());
    }
    std::vector<Row> rows;
    commands.verify(all, rank, [&](std::size_t i, const train::VerifyResult& result) {
      if (!leads) return;
      rows.push_back({&cases[i], result});
      equal = equal && result.equal;
      if (options.json) return;
      fmt::print(context.out, "{:3}/{}  {:5}  {:<56} gradients {:.0e}, weights {:.0e}\n", i + 1, cases.size(),
                 result.equal ? "equal" : "NOT", cases[i].text(), result.gradients.relative, result.weights.relative);
      context.out.flush();
    });
    if (!leads) return;
    const std::vector<std::string> features = plan::features_of(cases);
    const TextTable pairs = pair_table(features, Meetings(rows));
    if (options.json) {
      nlohmann::ordered_json json{{"equal", equal}, {"layouts", nlohmann::ordered_json::array()}};
      for (const Row& row : rows) {
        json["layouts"].push_back({{"layout", row.layout->text()},
                                   {"equal", row.result.equal},
                                   {"gradients", row.result.gradients.relative},
                                   {"weights", row.result.weights.relative}});
      }
      for (const plan::RefusedLayout& one : matrix.refused) {
        json["refused"].push_back({{"layout", one.text}, {"reason", one.reason}});
      }
      fmt::print(context.out, "{}\n", json.dump(2));
    } else {
      fmt::print(context.out, "\nIn how many layouts two features were together, all of them equal to one rank:\n{}",
                 pairs.text());
      if (!matrix.refused.empty()) {
        fmt::print(context.out, "\nRefused:\n{}", refusal_table(matrix.refused).text("", 110));
      }
      const auto good =
          static_cast<std::size_t>(std::ranges::count_if(rows, [](const Row& r) { return r.result.equal; }));
      fmt::print(context.out, "\n{} of {} layouts compute what one rank computes\n", good, rows.size());
    }
    if (options.write) write_markdown(options, rows, matrix, pairs, rank.ranks());
  });
  return equal;
}

}  // namespace trireme::cli
