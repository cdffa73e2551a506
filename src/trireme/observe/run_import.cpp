#include "trireme/observe/run_import.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/new_file.h"
#include "trireme/base/text.h"
#include "trireme/observe/records.h"

namespace trireme::observe {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLargestFile = 1ULL << 30;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Also "nan" and "inf"; nothing where there is more than a number.
std::optional<double> parse_double(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct Point {
  double time = 0;  // seconds since 1970
  double value = 0;
};
using Curve = std::map<std::int64_t, Point>;  // by step; the last one of a step that was logged twice

/// A run of another tool.
struct ForeignRun {
  std::string from, id, recipe;  // "mlflow"; what it is called there; the recipe, if it was one of ours
  std::map<std::string, Curve> curves;
  Json start = Json::object();  // fields of the "start" event
  double started = 0;
  std::optional<double> ended;
  std::string why;  // how it ended
};

/// Names by which trainers log a curve; ours first.
const std::vector<std::string>& names_of(const std::string& field) {
  static const std::map<std::string, std::vector<std::string>> kNames{
      {"loss", {"loss", "train/loss", "train_loss", "training_loss", "training/loss", "lm loss", "loss/train"}},
      {"grad_norm", {"grad_norm", "train/grad_norm", "grad-norm", "gradient_norm"}},
      {"lr", {"lr", "learning_rate", "train/learning_rate", "train/lr", "learning-rate"}},
      {"tokens", {"tokens", "train/tokens", "num_tokens", "train/num_input_tokens_seen", "num_input_tokens_seen"}},
      {"tokens_per_s", {"tokens_per_s", "tokens_per_second", "tokens_per_sec", "train/tokens_per_second"}},
      {"mfu", {"mfu", "train/mfu"}},
      {"memory", {"memory"}},
      {"seconds", {"seconds", "step_time", "train/step_time", "iteration-time"}},
      {"validation", {"validation/loss", "eval/loss", "eval_loss", "val_loss", "val/loss", "validation_loss"}}};
  return kNames.at(field);
}

/// The curves of a run by our names; what was asked for is no longer left out.
class Curves {
 public:
  explicit Curves(const std::map<std::string, Curve>& all) : all_(all) {
    for (const auto& [name, curve] : all) unused_.insert(name);
  }
  const Curve& named(const std::string& name) {
    static const Curve kNone;
    const auto found = all_.find(name);
    if (found == all_.end()) return kNone;
    unused_.erase(name);
    return found->second;
  }
  const Curve& of(const std::string& field) {
    for (const std::string& name : names_of(field)) {
      if (all_.contains(name)) return named(name);
    }
    return named("");
  }
  const std::set<std::string>& unused() const { return unused_; }

 private:
  const std::map<std::string, Curve>& all_;
  std::set<std::string> unused_;
};

double at(const Curve& curve, std::int64_t step, double otherwise) {
  const auto found = curve.find(step);
  return found == curve.end() ? otherwise : found->second.value;
}

/// Whole numbers went through a double; a NaN among them is not known.
std::int64_t whole(double value) { return std::isfinite(value) ? std::llround(value) : 0; }

std::string metrics_text(Curves& curves) {
  const Curve &loss = curves.of("loss"), &grad_norm = curves.of("grad_norm"), &lr = curves.of("lr"),
              &tokens = curves.of("tokens"), &rate = curves.of("tokens_per_s"), &mfu = curves.of("mfu"),
              &memory = curves.of("memory"), &seconds = curves.of("seconds");
  const Curve &compute = curves.named("breakdown/compute"), &data = curves.named("breakdown/data"),
              &comm = curves.named("breakdown/comm"), &overhead = curves.named("breakdown/overhead");
  std::vector<std::pair<std::string, const Curve*>> terms;
  const std::set<std::string> rest = curves.unused();
  for (const std::string& name : rest) {
    if (name.starts_with("losses/")) terms.emplace_back(name.substr(7), &curves.named(name));
  }
  std::string text;
  StepRecord record;
  std::optional<std::pair<std::int64_t, double>> before;  // step and time
  for (const auto& [step, point] : loss) {
    // Without times of its own, a step took its part of the time since the one that was logged before.
    const double passed = before ? (point.time - before->second) / static_cast<double>(step - before->first) : kNan;
    before = {step, point.time};
    record = {.step = step,
              .loss = point.value,
              .grad_norm = at(grad_norm, step, kNan),
              .lr = at(lr, step, record.step > 0 ? record.lr : kNan),  // it is often logged less often
              .tokens = whole(at(tokens, step, static_cast<double>(record.tokens))),
              .tokens_per_s = at(rate, step, kNan),
              .memory = whole(at(memory, step, static_cast<double>(record.memory))),
              .seconds = at(seconds, step, passed),
              .breakdown = {.compute = at(compute, step, 0),
                            .data = at(data, step, 0),
                            .comm = at(comm, step, 0),
                            .overhead = at(overhead, step, 0)}};
    if (mfu.contains(step)) record.mfu = mfu.at(step).value;
    for (const auto& [name, curve] : terms) {
      if (curve->contains(step)) record.losses.push_back({.name = name, .mean = curve->at(step).value, .weight = 0});
    }
    text += line_of(to_json(record)) + '\n';
  }
  return text;
}

std::string events_text(const ForeignRun& run, Curves& curves, std::int64_t last_step) {
  const auto line = [](const char* kind, double time, Json fields) {
    Json event{{"event", kind}, {"time", time}};
    event.update(with_texts(std::move(fields)));
    return line_of(event) + '\n';
  };
  Json start{{"step", 0}, {"steps", last_step}};
  start.update(run.start);
  start["imported"] = {{"from", run.from}, {"run", run.id}};
  std::string text = line("start", run.started, std::move(start));
  for (const auto& [step, point] : curves.of("validation")) {
    text += line("eval", point.time, {{"step", step}, {"loss", point.value}});
  }
  return text + line("stop", run.ended.value_or(run.started), {{"step", last_step}, {"why", run.why}});
}

/// A name as that of a folder: it leads nowhere else.
std::string folder_name(const std::string& name) {
  std::string out;
  for (const char letter : name) out += letter == '/' || letter == '\0' ? '_' : letter;
  return out.empty() || out.find_first_not_of('.') == std::string::npos ? "_" + out : out.substr(0, 200);
}

void check_importable(const ForeignRun& run, const fs::path& folder) {
  if (Curves(run.curves).of("loss").empty()) {
    std::vector<std::string> names;
    for (const auto& [name, curve] : run.curves) names.push_back(name);
    throw ConfigError(fmt::format("{} run {} has no training loss; its metrics are: {}", run.from, run.id,
                                  names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))),
                      fmt::format("log it as one of: {}", fmt::join(names_of("loss"), ", ")));
  }
  for (const char* name : {"metrics.jsonl", "events.jsonl"}) {
    if (fs::exists(folder / name)) {
      throw ConfigError(fmt::format("{} already holds a run", folder.string()), "give another folder with --output");
    }
  }
}

ImportedRun write_run(const ForeignRun& run, const fs::path& folder) {
  Curves curves(run.curves);
  const Curve& loss = curves.of("loss");
  fs::create_directories(folder);
  if (!run.recipe.empty()) write_text_file(folder / "recipe.toml", run.recipe);
  write_text_file(folder / "metrics.jsonl", metrics_text(curves));
  write_text_file(folder / "events.jsonl", events_text(run, curves, loss.rbegin()->first));
  return {.folder = folder,
          .steps = static_cast<std::int64_t>(loss.size()),
          .left_out = {curves.unused().begin(), curves.unused().end()}};
}

/// A scalar of YAML on one line, in the three ways of writing one.
std::string yaml_scalar(const std::string& text) {
  if (text.size() >= 2 && text.front() == '"') {
    const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    return value.is_string() ? value.get<std::string>() : text.substr(1, text.size() - 2);
  }
  if (text.size() < 2 || text.front() != '\'') return text;
  std::string out = text.substr(1, text.size() - 2);
  for (std::size_t i = 0; (i = out.find("''", i)) != std::string::npos; ++i) out.erase(i, 1);
  return out;
}

/// meta.yaml is flat: keys and scalars. A long one is folded into lines that are indented.
std::map<std::string, std::string> read_meta(const fs::path& path) {
  std::vector<std::string> lines;
  for (const std::string& line : split(read_text_file(path, kLargestFile), '\n')) {
    if (line.starts_with("  ") && !lines.empty()) {
      lines.back() += " " + std::string(trimmed(line));
    } else {
      lines.emplace_back(trimmed(line));
    }
  }
  std::map<std::string, std::string> meta;
  for (const std::string& line : lines) {
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) meta[line.substr(0, colon)] = yaml_scalar(line.substr(colon + 2));
  }
  return meta;
}

std::optional<double> seconds_of(const std::map<std::string, std::string>& meta, const char* key) {
  const auto found = meta.find(key);
  if (found == meta.end()) return std::nullopt;
  const auto milliseconds = parse_double(found->second);
  return milliseconds ? std::optional(*milliseconds / 1000) : std::nullopt;
}

/// Lines "milliseconds value step"; old files leave the step out.
Curve read_curve(const fs::path& path) {
  Curve curve;
  std::int64_t number = 0;
  for (const std::string& line : split(read_text_file(path, kLargestFile), '\n')) {
    ++number;
    const std::string text(trimmed(line));
    if (text.empty()) continue;
    const std::vector<std::string> words = split(text, ' ');
    const auto time = parse_double(words[0]);
    const auto value = words.size() > 1 ? parse_double(words[1]) : std::nullopt;
    const auto step = words.size() > 2 ? parse_double(words[2]) : std::optional(0.0);
    if (!time || !value || !step) {
      throw IoError(
          fmt::format("{}:{}: expected \"MILLISECONDS VALUE STEP\", not \"{}\"", path.string(), number, text));
    }
    curve[whole(*step)] = {.time = *time / 1000, .value = *value};
  }
  return curve;
}

ForeignRun read_mlflow_run(const fs::path& folder, const std::map<std::string, std::string>& meta) {
  enum : int { kFinished = 3, kFailed = 4, kKilled = 5 };  // of MLflow's protocol
  ForeignRun run{.from = "mlflow", .id = folder.filename().string()};
  for (const auto& entry : fs::recursive_directory_iterator(folder / "metrics")) {
    if (entry.is_regular_file())
      run.curves[fs::relative(entry.path(), folder / "metrics").string()] = read_curve(entry.path());
  }
  run.started = seconds_of(meta, "start_time").value_or(0);
  run.ended = seconds_of(meta, "end_time");
  const auto found = meta.find("status");
  const int status = found == meta.end() ? 0 : static_cast<int>(parse_double(found->second).value_or(0));
  run.why = status == kFinished ? "finished"
            : status == kFailed ? "failed"
            : status == kKilled ? "interrupted"
                                : "imported before its end";
  const fs::path recipe = folder / "artifacts" / "recipe.toml", start = folder / "tags" / "trireme.start";
  if (fs::exists(recipe)) run.recipe = read_text_file(recipe, kLargestFile);
  if (fs::exists(start)) {
    Json fields = Json::parse(read_text_file(start, kLargestFile), nullptr, /*allow_exceptions=*/false);
    if (fields.is_object()) run.start = std::move(fields);
  } else if (fs::is_directory(folder / "params")) {
    for (const auto& entry : fs::recursive_directory_iterator(folder / "params")) {
      if (!entry.is_regular_file()) continue;
      run.start["params"][fs::relative(entry.path(), folder / "params").string()] =
          read_text_file(entry.path(), kLargestFile);
    }
  }
  return run;
}

std::vector<fs::path> folders_of(const fs::path& folder) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory() && fs::exists(entry.path() / "meta.yaml")) out.push_back(entry.path());
  }
  std::ranges::sort(out);  // the order of a directory is nobody's
  return out;
}

bool deleted(const std::map<std::string, std::string>& meta) {
  const auto stage = meta.find("lifecycle_stage");
  return stage != meta.end() && stage->second == "deleted";
}

std::string or_else(const std::map<std::string, std::string>& meta, const char* key, const fs::path& folder) {
  const auto found = meta.find(key);
  return folder_name(found == meta.end() || found->second.empty() ? folder.filename().string() : found->second);
}

}  // namespace

std::vector<ImportedRun> import_mlflow(const fs::path& mlruns, const fs::path& out) {
  if (!fs::is_directory(mlruns) || folders_of(mlruns).empty()) {
    throw ConfigError(
        fmt::format("{} is no store of files of MLflow: no folder in it has a meta.yaml", mlruns.string()),
        "name the folder that mlflow calls --backend-store-uri");
  }
  std::vector<std::pair<ForeignRun, fs::path>> runs;
  std::set<fs::path> taken;
  for (const fs::path& experiment : folders_of(mlruns)) {
    const auto about = read_meta(experiment / "meta.yaml");
    if (deleted(about)) continue;
    for (const fs::path& folder : folders_of(experiment)) {
      const auto meta = read_meta(folder / "meta.yaml");
      if (deleted(meta)) continue;
      const fs::path wanted = out / or_else(about, "name", experiment) / or_else(meta, "run_name", folder);
      fs::path place = wanted;
      for (int i = 2; !taken.insert(place).second; ++i) place = fmt::format("{}-{}", wanted.string(), i);
      runs.emplace_back(read_mlflow_run(folder, meta), place);
      check_importable(runs.back().first, place);
    }
  }
  std::vector<ImportedRun> imported;
  for (const auto& [run, place] : runs) imported.push_back(write_run(run, place));
  return imported;
}

ImportedRun import_wandb(const fs::path& history, const fs::path& out) {
  ForeignRun run{.from = "wandb", .id = history.stem().string(), .why = "finished"};
  std::int64_t number = 0;
  for (const std::string& line : split(read_text_file(history, kLargestFile), '\n')) {
    ++number;
    if (trimmed(line).empty()) continue;
    const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object()) throw IoError(fmt::format("{}:{}: no JSON object", history.string(), number));
    const auto named = [&](const char* name) -> std::optional<double> {
      const auto found = row.find(name);
      return found == row.end() ? std::nullopt : as_number(*found);
    };
    const std::int64_t step = whole(named("_step").value_or(named("step").value_or(static_cast<double>(number))));
    const double time = named("_timestamp").value_or(0);
    if (run.started == 0) run.started = time - named("_runtime").value_or(0);
    run.ended = time;
    for (const auto& [name, value] : row.items()) {
      if (name.starts_with("_") || name == "step") continue;
      // Its own JSON spells them so.
      const bool text = value.is_string();
      const auto known = text && value == "NaN"         ? std::optional(kNan)
                         : text && value == "Infinity"  ? std::optional(std::numeric_limits<double>::infinity())
                         : text && value == "-Infinity" ? std::optional(-std::numeric_limits<double>::infinity())
                                                        : as_number(value);
      if (known) run.curves[name][step] = {.time = time, .value = *known};
    }
  }
  const fs::path place = out / folder_name(run.id);
  check_importable(run, place);
  return write_run(run, place);
}

}  // namespace trireme::observe
