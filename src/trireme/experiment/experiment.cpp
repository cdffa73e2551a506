#include "trireme/experiment/experiment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/new_file.h"
#include "trireme/base/text.h"
#include "trireme/base/wall_clock.h"
#include "trireme/observe/json_values.h"

namespace trireme::experiment {
namespace {

namespace fs = std::filesystem;
using observe::Json;

constexpr Named<Mode> kModes[] = {
    {"aggressive", Mode::kAggressive}, {"standard", Mode::kStandard}, {"conservative", Mode::kConservative}};
constexpr Named<Result::End> kEnds[] = {
    {"reached", Result::End::kReached}, {"failed", Result::End::kFailed}, {"invalid", Result::End::kInvalid}};
constexpr Named<Wanted> kWanted[] = {{"paused", Wanted::kPaused}, {"stopped", Wanted::kStopped}};

template <typename Enum, std::size_t count>
Enum named_value(const Named<Enum> (&names)[count], const std::string& word) {
  for (const auto& entry : names) {
    if (entry.name == word) return entry.value;
  }
  throw IoError(fmt::format("\"{}\" is unknown", word));
}
template <typename Enum, std::size_t count>
std::string name_of_value(const Named<Enum> (&names)[count], Enum value) {
  return std::string(name_in(std::span<const Named<Enum>>(names), value));
}

Json to_json(const Setting& setting) {
  Json out = Json::object();
  for (const Assignment& assignment : setting) out[assignment.key] = assignment.value;
  return out;
}

Json to_json(const Job& job) {
  Json out{{"trial", job.trial}, {"draw", job.draw}, {"from", job.from}, {"until", job.until}};
  if (job.copy_of) out["copy_of"] = *job.copy_of;
  out["setting"] = to_json(job.setting);
  return out;
}

Json to_json(const Result& result) {
  return {{"trial", result.trial},
          {"step", result.step},
          {"value", observe::number(result.value)},
          {"end", name_of_value(kEnds, result.end)}};
}

Job job_from(const Json& json) {
  Job job{.trial = json.at("trial").get<int>(),
          .draw = json.at("draw").get<int>(),
          .from = json.at("from").get<std::int64_t>(),
          .until = json.at("until").get<std::int64_t>()};
  if (const auto copied = json.find("copy_of"); copied != json.end()) job.copy_of = copied->get<int>();
  for (const auto& [key, value] : json.at("setting").items()) {
    job.setting.push_back({.key = key, .value = value.get<std::string>()});
  }
  return job;
}

Result result_from(const Json& json) {
  const auto value = observe::as_number(json.at("value"));
  if (!value) throw IoError("\"value\" is not a number");
  return {.trial = json.at("trial").get<int>(),
          .step = json.at("step").get<std::int64_t>(),
          .value = *value,
          .end = named_value(kEnds, json.at("end").get<std::string>())};
}

Json to_json(const Experiment& experiment) {
  const SearchOptions& options = experiment.options;
  std::vector<std::string> parameters;
  for (const Parameter& parameter : options.space.parameters) parameters.push_back(to_text(parameter));
  return {{"version", 1},
          {"name", experiment.name},
          {"created", experiment.created},
          {"search", experiment.search},
          {"parameters", parameters},
          {"seed", options.seed},
          {"trials", options.trials},
          {"max_steps", options.max_steps},
          {"min_steps", options.min_steps},
          {"divisor", options.divisor},
          {"rungs", options.rungs},
          {"mode", name_of_value(kModes, options.mode)},
          {"concurrent", options.concurrent},
          {"rounds", options.rounds},
          {"sets", experiment.sets},
          {"directory", experiment.directory.string()},
          {"slots_per_trial", experiment.slots_per_trial},
          {"priority", experiment.priority},
          {"weight", experiment.weight}};
}

Experiment experiment_from(const Json& json) {
  const int version = json.at("version").get<int>();
  if (version != 1) throw IoError(fmt::format("is of version {}, and this program reads version 1", version));
  return {.name = json.at("name").get<std::string>(),
          .search = json.at("search").get<std::string>(),
          .options = {.space = parse_space(json.at("parameters").get<std::vector<std::string>>()),
                      .seed = json.at("seed").get<std::uint64_t>(),
                      .trials = json.at("trials").get<int>(),
                      .max_steps = json.at("max_steps").get<std::int64_t>(),
                      .min_steps = json.at("min_steps").get<std::int64_t>(),
                      .divisor = json.at("divisor").get<int>(),
                      .rungs = json.at("rungs").get<int>(),
                      .mode = named_value(kModes, json.at("mode").get<std::string>()),
                      .concurrent = json.at("concurrent").get<int>(),
                      .rounds = json.at("rounds").get<int>()},
          .sets = json.at("sets").get<std::vector<std::string>>(),
          .directory = json.at("directory").get<std::string>(),
          .slots_per_trial = json.at("slots_per_trial").get<int>(),
          .priority = json.at("priority").get<int>(),
          .weight = json.at("weight").get<double>(),
          .created = json.at("created").get<double>()};
}

std::string text_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw IoError(fmt::format("{} cannot be read", path.string()), "check that it is there and its permissions");
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Runs `read`; what JSON or a reader has to say against it becomes an IoError of `where`.
template <typename Read>
auto reading(const std::string& where, Read&& read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& error) {
    throw IoError(fmt::format("{}: {}", where, error.what()), "restore it from a copy");
  } catch (const Error& error) {
    throw IoError(fmt::format("{}: {}", where, error.message()), "restore it from a copy");
  }
}

std::string trial_name(int trial, int draw) {
  return draw == 0 ? fmt::format("{:04}", trial) : fmt::format("{:04}-{}", trial, draw);
}

}  // namespace

fs::path ExperimentFolder::run(int trial, int draw) const { return trials() / trial_name(trial, draw); }
fs::path ExperimentFolder::log(int trial, int draw) const { return trials() / (trial_name(trial, draw) + ".log"); }

bool ExperimentFolder::holds_an_experiment() const { return fs::exists(path_ / "experiment.json"); }

void ExperimentFolder::create(const Experiment& experiment, const std::string& recipe_text) const {
  if (holds_an_experiment()) {
    throw ConfigError(
        fmt::format("{} already holds an experiment", path_.string()),
        fmt::format("go on with it: trireme experiments resume {}; or give another --out", path_.string()));
  }
  fs::create_directories(trials());
  write_text_file(recipe(), recipe_text);
  write_text_file(path_ / "experiment.json", to_json(experiment).dump(2) + "\n");  // last: now it is one
}

Experiment ExperimentFolder::read() const {
  const fs::path file = path_ / "experiment.json";
  if (!fs::exists(file)) {
    throw ConfigError(fmt::format("{} holds no experiment", path_.string()),
                      "name the folder that `trireme sweep --out` was given");
  }
  return reading(file.string(), [&] { return experiment_from(Json::parse(text_of_file(file))); });
}

Journal ExperimentFolder::read_journal() const {
  Journal entries;
  if (!fs::exists(journal())) return entries;
  const std::string text = text_of_file(journal());
  std::size_t begin = 0;
  for (int number = 1; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // a crash has cut it
    reading(fmt::format("{}:{}", journal().string(), number), [&] {
      const Json line = Json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                                    text.begin() + static_cast<std::ptrdiff_t>(end));
      if (const auto job = line.find("job"); job != line.end()) {
        entries.emplace_back(job_from(*job));
      } else {
        entries.emplace_back(result_from(line.at("result")));
      }
      return 0;
    });
    begin = end + 1;
  }
  return entries;
}

Wanted ExperimentFolder::wanted() const {
  const fs::path file = path_ / "wanted";
  if (!fs::exists(file)) return Wanted::kRunning;
  return reading(file.string(), [&] { return named_value(kWanted, std::string(trimmed(text_of_file(file)))); });
}

void ExperimentFolder::want(Wanted wanted) const {
  if (wanted == Wanted::kRunning) {
    fs::remove(path_ / "wanted");
  } else {
    write_text_file(path_ / "wanted", name_of_value(kWanted, wanted) + "\n");
  }
}

bool ExperimentFolder::is_locked() const { return is_file_locked(path_ / "lock"); }

bool is_file_locked(const fs::path& file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool locked = ::flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  return locked;
}

ExperimentLock::ExperimentLock(const ExperimentFolder& folder) {
  const fs::path file = folder.path() / "lock";
  descriptor_ = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw IoError(fmt::format("{} cannot be made: {}", file.string(), std::strerror(errno)));
  // A sweep that was killed while it started a trial is survived by that process until its exec closes the file: what
  // is locked for a moment only is waited for.
  for (int tries = 0; ::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; ++tries) {
    if (tries < 100) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      continue;
    }
    ::close(descriptor_);
    throw ConfigError(fmt::format("another process runs the experiment in {}", folder.path().string()),
                      fmt::format("look at it with: trireme experiments show {}", folder.path().string()));
  }
}
ExperimentLock::~ExperimentLock() { ::close(descriptor_); }

JournalFile::JournalFile(const ExperimentFolder& folder) : path_(folder.journal()) {
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw IoError(fmt::format("{} cannot be written: {}", path_.string(), std::strerror(errno)));
  const std::string text = text_of_file(path_);
  const std::size_t last = text.rfind('\n');
  const std::size_t whole = last == std::string::npos ? 0 : last + 1;
  if (whole < text.size() && ::ftruncate(descriptor_, static_cast<off_t>(whole)) != 0) {
    const int why = errno;
    ::close(descriptor_);
    throw IoError(fmt::format("{} cannot be cut back: {}", path_.string(), std::strerror(why)));
  }
}
JournalFile::~JournalFile() { ::close(descriptor_); }

void JournalFile::append(const std::variant<Job, Result>& entry) {
  Json line;
  if (const Job* job = std::get_if<Job>(&entry)) {
    line["job"] = to_json(*job);
  } else {
    line["result"] = to_json(std::get<Result>(entry));
  }
  line["time"] = wall_seconds();
  const std::string text = observe::line_of(line) + "\n";
  if (::write(descriptor_, text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::fdatasync(descriptor_) != 0) {
    throw IoError(fmt::format("{} cannot be written: {}", path_.string(), std::strerror(errno)),
                  "look at the space that is left");
  }
}

}  // namespace trireme::experiment
