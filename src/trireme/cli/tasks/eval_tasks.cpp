#include "trireme/cli/tasks/eval_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/plugin.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/program.h"
#include "trireme/cli/runtime_commands.h"
#include "trireme/cli/start_ranks.h"
#include "trireme/science/tasks/task_metrics.h"
#include "trireme/science/tasks/tasks.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

std::vector<science::TaskOutcome> outcomes_of(const std::vector<science::TaskItem>& items,
                                              std::span<const train::TaskReply> replies) {
  std::vector<science::TaskOutcome> outcomes;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const train::TaskReply& reply = replies[i];
    science::TaskOutcome one{.tokens = static_cast<std::int64_t>(reply.answer.size()),
                             .right_tokens = reply.right_tokens,
                             .edit_distance = science::edit_distance(reply.answer, reply.written),
                             .log_likelihood = reply.log_likelihoods[0]};
    if (reply.log_likelihoods.size() > 1) {
      one.choices = reply.log_likelihoods;
      one.choice_bytes.push_back(static_cast<std::int64_t>(items[i].answer.size()));
      for (const std::string& other : items[i].distractors)
        one.choice_bytes.push_back(static_cast<std::int64_t>(other.size()));
    }
    outcomes.push_back(std::move(one));
  }
  return outcomes;
}

ordered_json metric_json(const science::TaskMetric& metric) {
  ordered_json object{{"name", metric.name},
                      {"value", metric.value},
                      {"low", metric.low},
                      {"high", metric.high},
                      {"chance", nullptr},
                      {"floor", nullptr},
                      {"higher_is_better", metric.higher_is_better}};
  if (metric.chance) object["chance"] = *metric.chance;
  if (metric.floor) object["floor"] = *metric.floor;
  return object;
}

}  // namespace

int run_eval_tasks(const EvalTasks& options, train::TaskRequest request, std::optional<int> ranks, Context& context) {
  struct Asked {
    science::Task task;
    std::vector<science::TaskItem> items;
  };
  std::vector<Asked> asked;
  for (const std::string& name : options.tasks) {
    science::Task task = science::load_task(name);
    std::vector<science::TaskItem> items =
        science::few_shot_items(task, {.shots = options.shots, .seed = options.seed});
    for (const science::TaskItem& item : items)
      request.questions.push_back({item.prompt, item.answer, item.distractors});
    asked.push_back({std::move(task), std::move(items)});
  }
  spec::Recipe recipe;
  recipe.comm.ranks = ranks;
  request.local_ranks = local_ranks(recipe);
  const Plugin library = Plugin::load("runtime");
  const train::TaskCommands& commands = *library.function<const train::TaskCommands*()>(train::kTaskEntry)();
  if (commands.version != train::kTaskVersion)
    throw ConfigError(fmt::format("{} offers version {} of its task commands, this program needs {}", library.path(),
                                  commands.version, train::kTaskVersion),
                      "build and install program and libraries together");
  start_ranks(recipe, [&](comm::Rank& rank) {
    const train::TaskReplies result = commands.answer(request, rank);
    if (rank.rank() != 0) return;
    ordered_json json{{"model", request.model.string()},
                      {"parameters", result.parameters},
                      {"tokens", nullptr},
                      {"tasks", ordered_json::array()}};
    if (result.tokens) json["tokens"] = *result.tokens;
    std::size_t first = 0;
    for (const Asked& one : asked) {
      const std::span<const train::TaskReply> replies(result.replies.data() + first, one.items.size());
      first += one.items.size();
      const auto symbols = static_cast<double>(one.task.alphabet.value_or(static_cast<int>(result.vocab_size)));
      const auto metrics = science::task_metrics(outcomes_of(one.items, replies), symbols);
      const int shots = options.shots.value_or(one.task.shots);
      ordered_json task{
          {"name", one.task.name}, {"items", one.items.size()}, {"shots", shots}, {"metrics", ordered_json::array()}};
      TextTable table({{"metric"},
                       {"value", TextTable::Align::kRight},
                       {"95 %", TextTable::Align::kRight},
                       {"chance", TextTable::Align::kRight},
                       {"floor", TextTable::Align::kRight}});
      for (const science::TaskMetric& metric : metrics) {
        task["metrics"].push_back(metric_json(metric));
        table.add({metric.name, fmt::format("{:.4f}", metric.value),
                   fmt::format("{:.4f} to {:.4f}", metric.low, metric.high),
                   metric.chance ? fmt::format("{:.3g}", *metric.chance) : "-",
                   metric.floor ? fmt::format("{:.3g}", *metric.floor) : "-"});
      }
      json["tasks"].push_back(std::move(task));
      if (!options.json)
        fmt::print(context.out, "{}: {} items, {} examples before each\n{}\n", one.task.name, one.items.size(), shots,
                   table.text());
    }
    if (options.json) fmt::print(context.out, "{}\n", json.dump());
  });
  return kExitFine;
}

}  // namespace trireme::cli
