#include "trireme/observe/run_reader.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"

namespace trireme::observe {
namespace {

namespace fs = std::filesystem;

Json parsed(const std::string& line) {
  try {
    return Json::parse(line);
  } catch (const Json::parse_error& error) {
    throw IoError(fmt::format("is no JSON: character {} is not expected", error.byte));
  }
}

/// Gives each whole line to `take`, which throws an IoError that says what is wrong with it.
template <typename Take>
void read_lines(const fs::path& path, std::vector<std::string>& notes, Take&& take) {
  const std::string name = path.filename().string();
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    if (fs::exists(path)) throw IoError(fmt::format("{}: cannot be read", path.string()), "check its permissions");
    notes.push_back(fmt::format("{}: there is none", name));
    return;
  }
  std::string line;
  std::size_t number = 1;
  for (; std::getline(file, line); ++number) {
    if (file.eof()) {
      notes.push_back(fmt::format("{}:{}: the last line is cut short and was left out", name, number));
      break;
    }
    try {
      take(parsed(line));
    } catch (const IoError& error) {
      throw IoError(fmt::format("{}:{}: {}", path.string(), number, error.message()),
                    fmt::format("repair or remove that line of {}", name));
    }
  }
  if (file.bad()) throw IoError(fmt::format("{}: cannot be read to its end", path.string()));
  if (number == 1) notes.push_back(fmt::format("{}: it is empty", name));
}

template <typename Record>
void add_in_order(std::vector<Record>& records, Record record) {
  if (!records.empty() && record.step <= records.back().step) {
    throw IoError(fmt::format("step {} stands after step {}", record.step, records.back().step));
  }
  records.push_back(std::move(record));
}

void check_folder(const fs::path& dir) {
  std::error_code ignored;
  if (!fs::exists(dir, ignored)) {
    throw ConfigError(fmt::format("there is no run folder {}", dir.string()), "name a folder that a run has written");
  }
  if (!fs::is_directory(dir, ignored)) {
    throw ConfigError(fmt::format("{} is no folder", dir.string()),
                      fmt::format("name the run's folder, e.g. {}", (dir.parent_path() / ".").string()));
  }
  const auto has = [&](const char* name) { return fs::exists(dir / name); };
  if (has("metrics.jsonl") || has("hashes.jsonl") || has("events.jsonl") || has("recipe.toml")) return;
  throw ConfigError(fmt::format("{} holds no run: neither metrics.jsonl nor events.jsonl is there", dir.string()),
                    "name the folder that a run has written");
}

}  // namespace

std::vector<const EventRecord*> RunFiles::events_of(std::string_view kind) const {
  std::vector<const EventRecord*> chosen;
  for (const EventRecord& event : events) {
    if (event.kind == "resume") {
      const std::int64_t last = event.step().value_or(0);
      std::erase_if(chosen, [&](const EventRecord* before) { return before->step().value_or(0) > last; });
    }
    if (event.kind == kind) chosen.push_back(&event);
  }
  return chosen;
}

RunFiles read_run(const fs::path& dir, Reading reading) {
  check_folder(dir);
  RunFiles run{.dir = dir, .recipe = {}, .steps = {}, .events = {}, .hashes = {}, .notes = {}};
  const auto read = [&](const char* name, auto&& take) {
    try {
      read_lines(dir / name, run.notes, take);
    } catch (const IoError& error) {
      if (reading == Reading::kStrict) throw;
      run.notes.push_back(fmt::format("{}; what follows was left out", error.message()));
    }
  };
  read("metrics.jsonl", [&](const Json& line) { add_in_order(run.steps, step_from(line)); });
  read("events.jsonl", [&](const Json& line) { run.events.push_back(event_from(line)); });
  if (fs::exists(dir / "hashes.jsonl") && fs::file_size(dir / "hashes.jsonl") > 0) {  // often nobody asked for hashes
    read("hashes.jsonl", [&](const Json& line) { add_in_order(run.hashes, hashes_from(line)); });
  }
  if (fs::exists(dir / "recipe.toml")) {
    run.recipe = read_text_file(dir / "recipe.toml", 16U << 20);
  } else {
    run.notes.emplace_back("recipe.toml: there is none");
  }
  return run;
}

}  // namespace trireme::observe
