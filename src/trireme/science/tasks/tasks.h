// science/tasks/tasks/tasks.h -- tasks as data: prompts with answers and distractors, read from files or made from a
// seed.
//
//   const Task task = load_task("addition:digits=3,count=200,seed=1");    // or tasks.jsonl, tasks.toml, a harness
//   .yaml for (const TaskItem& item : few_shot_items(task, {.shots = 2})) ...   // prompts with examples before them
//
// Which model answers them and how well is not known here: task_metrics.h scores what came back.
// Depends on: base, formats (JSON); yaml.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::science {

struct TaskItem {
  std::string prompt, answer;
  std::vector<std::string> distractors = {};  ///< wrong answers; empty: no multiple choice
  bool operator==(const TaskItem&) const = default;
};

struct Task {
  std::string name;
  std::vector<TaskItem> items;
  std::vector<TaskItem> examples = {};  ///< for few-shot prompts; empty: the other items
  int shots = 0;                        ///< examples before each prompt, unless whoever asks says otherwise
  std::string description = {};         ///< stands before everything
  std::string delimiter = "\n";         ///< between examples
  std::optional<int> alphabet = {};     ///< symbols that a token of an answer can be: what guessing is held against
};

/// A generator's words ("addition:digits=3,count=200,seed=1"), or a file: .jsonl (one item a line), .toml (name,
/// shots, alphabet, [[items]] or generate = "..."), .yaml or .yml (lm-evaluation-harness, simple form).
Task load_task(const std::string& what);

/// addition (digits), modular (modulus), copy, reverse (length), facts (keys, length), cloze (file): `kind:key=value,
/// ...` with count and seed. split=train and split=test share out all questions by a hash, nine to one, so that what a
/// model was trained on is never asked; split=all is the default.
Task generate_task(std::string_view words);
/// What stands before the colon of a generator; nullopt: none of them, so a file.
std::optional<std::string> generator_of(std::string_view words);

struct FewShot {
  std::optional<int> shots = {};  ///< unset: as the task says
  std::uint64_t seed = 0;         ///< which examples each item gets
};
/// The items with description and examples before their prompts. An item is never its own example.
std::vector<TaskItem> few_shot_items(const Task& task, const FewShot& few_shot);

/// Prompts with their answers, a line each: text to train on.
std::string task_text(const Task& task);
/// One JSON object a line, as load_task reads.
std::string task_jsonl(const Task& task);

/// lm-evaluation-harness' task file in its simple form; `path` is where relative data files are looked for. A key that
/// is not understood is a ConfigError with its name.
Task harness_task(std::string_view yaml, const std::filesystem::path& path);

}  // namespace trireme::science
