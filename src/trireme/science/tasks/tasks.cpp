#include "trireme/science/tasks/tasks.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/random.h"

namespace trireme::science {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kMostTaskBytes = std::uint64_t{256} << 20;

TaskItem item_of(const json& object, const std::string& where) {
  if (!object.is_object()) throw ConfigError(fmt::format("{} is no object", where), "give prompt and answer");
  TaskItem item;
  for (const auto& [key, value] : object.items()) {
    if ((key == "prompt" || key == "answer") && value.is_string()) {
      (key == "prompt" ? item.prompt : item.answer) = value.get<std::string>();
    } else if (key == "distractors" && value.is_array()) {
      for (const json& one : value) {
        if (!one.is_string()) throw ConfigError(fmt::format("{}: a distractor is no string", where));
        item.distractors.push_back(one.get<std::string>());
      }
    } else {
      throw ConfigError(fmt::format("{}: {} is not understood", where, key),
                        "an item has prompt and answer, strings, and distractors, an array of strings");
    }
  }
  if (item.answer.empty()) throw ConfigError(fmt::format("{} has no answer", where), "give answer = \"...\"");
  for (const std::string& one : item.distractors) {
    if (one.empty() || one == item.answer)
      throw ConfigError(fmt::format("{}: the distractor \"{}\" is empty or the answer itself", where, one));
  }
  return item;
}

Task read_jsonl(const fs::path& path) {
  Task task{.name = path.stem().string(), .items = {}};
  std::istringstream lines(read_text_file(path, kMostTaskBytes));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}:{}", path.string(), number);
    json object;
    try {
      object = json::parse(line);
    } catch (const json::exception& error) {
      throw ConfigError(fmt::format("{}: {}", where, error.what()), "give one JSON object a line");
    }
    task.items.push_back(item_of(object, where));
  }
  return task;
}

Task read_toml(const fs::path& path) {
  json file;
  try {
    const toml::table table = toml::parse(read_text_file(path, kMostTaskBytes), path.string());
    std::ostringstream text;
    text << toml::json_formatter(table);
    file = json::parse(text.str());
  } catch (const toml::parse_error& error) {
    throw ConfigError(fmt::format("{}:{}: {}", path.string(), error.source().begin.line, error.description()));
  }
  Task task{.name = path.stem().string(), .items = {}};
  const auto bad = [&](const std::string& key, const char* wanted) {
    return ConfigError(fmt::format("{}: {} is not {}", path.string(), key, wanted));
  };
  if (const auto at = file.find("generate"); at != file.end()) {
    if (!at->is_string()) throw bad("generate", "a string such as \"addition:digits=2\"");
    task = generate_task(at->get<std::string>());
  }
  for (const auto& [key, value] : file.items()) {
    if (key == "generate") continue;
    if (key == "name" || key == "description" || key == "delimiter") {
      if (!value.is_string()) throw bad(key, "a string");
      (key == "name" ? task.name : key == "description" ? task.description : task.delimiter) = value.get<std::string>();
    } else if (key == "shots" || key == "alphabet") {
      if (!value.is_number_integer() || value.get<std::int64_t>() < 0 || value.get<std::int64_t>() > 100'000)
        throw bad(key, "a number from 0 to 100000");
      if (key == "shots")
        task.shots = value.get<int>();
      else
        task.alphabet = value.get<int>();
    } else if (key == "items" || key == "examples") {
      if (!value.is_array()) throw bad(key, "an array of tables");
      auto& items = key == "items" ? task.items : task.examples;
      for (const json& one : value)
        items.push_back(item_of(one, fmt::format("{}: {}[{}]", path.string(), key, items.size())));
    } else {
      throw ConfigError(fmt::format("{}: {} is not understood", path.string(), key),
                        "keys are name, description, delimiter, shots, alphabet, generate, items and examples");
    }
  }
  return task;
}

}  // namespace

Task load_task(const std::string& what) {
  if (generator_of(what)) return generate_task(what);
  const fs::path path(what);
  const std::string kind = path.extension().string();
  Task task;
  if (kind == ".jsonl") {
    task = read_jsonl(path);
  } else if (kind == ".toml") {
    task = read_toml(path);
  } else if (kind == ".yaml" || kind == ".yml") {
    task = harness_task(read_text_file(path, kMostTaskBytes), path);
  } else {
    throw ConfigError(fmt::format("{} is neither a task file nor a generated task", what),
                      "give a .jsonl, .toml or .yaml file, or addition, modular, copy, reverse, facts or cloze");
  }
  if (task.items.empty()) throw ConfigError(fmt::format("{} has no item", what), "add one");
  return task;
}

std::vector<TaskItem> few_shot_items(const Task& task, const FewShot& few_shot) {
  const int shots = few_shot.shots.value_or(task.shots);
  const bool own = task.examples.empty();
  const std::vector<TaskItem>& pool = own ? task.items : task.examples;
  if (static_cast<std::size_t>(shots) + (own ? 1 : 0) > pool.size())
    throw ConfigError(fmt::format("task {} has {} items to draw {} examples from", task.name, pool.size(), shots),
                      fmt::format("ask for at most {}", pool.size() - (own ? 1 : 0)));
  const Random random(few_shot.seed, "task/examples");
  std::vector<TaskItem> items;
  for (std::size_t i = 0; i < task.items.size(); ++i) {
    std::string before = task.description;
    std::vector<std::size_t> drawn;
    for (std::uint64_t draw = 0; static_cast<int>(drawn.size()) < shots; ++draw) {
      const auto one = static_cast<std::size_t>(random.below(pool.size(), i * 65536 + draw));
      if ((own && one == i) || std::find(drawn.begin(), drawn.end(), one) != drawn.end()) continue;
      drawn.push_back(one);
      before += pool[one].prompt + pool[one].answer + task.delimiter;
    }
    items.push_back({before + task.items[i].prompt, task.items[i].answer, task.items[i].distractors});
  }
  return items;
}

std::string task_text(const Task& task) {
  std::string text;
  for (const TaskItem& item : task.items) text += item.prompt + item.answer + "\n";
  return text;
}

std::string task_jsonl(const Task& task) {
  std::string text;
  for (const TaskItem& item : task.items) {
    nlohmann::ordered_json line{{"prompt", item.prompt}, {"answer", item.answer}};
    if (!item.distractors.empty()) line["distractors"] = item.distractors;
    text += line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  }
  return text;
}

}  // namespace trireme::science
