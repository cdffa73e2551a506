#include "trireme/observe/mlflow.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/new_file.h"
#include "trireme/base/sha256.h"
#include "trireme/base/text.h"
#include "trireme/observe/run_reader.h"

namespace trireme::observe {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestParameter = 6000;        // MLflow's limit
enum : int { kRuns = 1, kFinished = 3, kKilled = 5 };  // states in MLflow's protocol

std::string id_of(const std::string& what) {
  const Sha256Digest digest = sha256(what);
  return to_hex({reinterpret_cast<const char*>(digest.data()), 16});
}

/// A text of YAML on one line: that of JSON is one.
std::string yaml_text(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string file_uri(const fs::path& path) {
  std::string uri = "file://";
  for (const char letter : path.string()) {
    const auto byte = static_cast<unsigned char>(letter);
    const bool plain = std::isalnum(byte) != 0 || std::string_view("/-_.~").find(letter) != std::string_view::npos;
    uri += plain ? std::string(1, letter) : fmt::format("%{:02X}", byte);
  }
  return uri;
}

/// What MLflow takes as a name, which is also one of a file.
std::string plain_name(const std::string& name) {
  std::string out;
  for (const char letter : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(letter)) != 0 ||
                       std::string_view("_-. /").find(letter) != std::string_view::npos;
    out += plain ? letter : '_';
  }
  for (std::size_t at; (at = out.find("..")) != std::string::npos;) out.replace(at, 2, "_");
  return out;
}

/// Keys of a recipe with their values, "optim.learning_rate": "0.001".
void flatten(const toml::table& table, const std::string& prefix, std::map<std::string, std::string>& out) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    if (const toml::table* inner = node.as_table()) {
      flatten(*inner, name + ".", out);
    } else {
      std::ostringstream text;
      node.visit([&](const auto& value) {
        if constexpr (toml::is_string<decltype(value)>) {
          text << *value;
        } else if constexpr (toml::is_floating_point<decltype(value)>) {
          text << fmt::format("{}", *value);  // the shortest that reads back as it is
        } else {
          text << value;
        }
      });
      out[name] = text.str().substr(0, kLongestParameter);
    }
  }
}

class RunExport {
 public:
  RunExport(const fs::path& folder, const RunFiles& run) : folder_(folder), run_(run) {}

  void write_parameters() const {
    std::map<std::string, std::string> parameters;
    try {
      flatten(toml::parse(run_.recipe), "", parameters);
    } catch (const toml::parse_error& error) {
      throw IoError(fmt::format("{}: {}", (run_.dir / "recipe.toml").string(), error.description()));
    }
    fs::create_directories(folder_ / "params");
    for (const auto& [name, value] : parameters) write_text_file(folder_ / "params" / plain_name(name), value);
  }

  void write_metrics() const {
    std::map<std::string, std::string> files;
    double time = started();
    const auto add = [&](const std::string& name, double value, std::int64_t step, double at) {
      files[plain_name(name)] += fmt::format("{} {} {}\n", milliseconds(at), value, step);
    };
    for (const StepRecord& step : run_.steps) {
      if (std::isfinite(step.seconds)) time += step.seconds;
      const auto put = [&](const std::string& name, double value) { add(name, value, step.step, time); };
      put("loss", step.loss);
      put("grad_norm", step.grad_norm);
      put("lr", step.lr);
      put("tokens", static_cast<double>(step.tokens));
      put("tokens_per_s", step.tokens_per_s);
      if (step.mfu) put("mfu", *step.mfu);
      put("memory", static_cast<double>(step.memory));
      put("seconds", step.seconds);
      put("breakdown/compute", step.breakdown.compute);
      put("breakdown/data", step.breakdown.data);
      put("breakdown/comm", step.breakdown.comm);
      put("breakdown/overhead", step.breakdown.overhead);
      for (const NamedLoss& term : step.losses) put("losses/" + term.name, term.mean);
    }
    for (const EventRecord* event : run_.events_of("eval")) {
      if (const auto loss = event->number_of("loss"))
        add("validation/loss", *loss, event->step().value_or(0), event->time);
    }
    for (const auto& [name, text] : files) {
      fs::create_directories((folder_ / "metrics" / name).parent_path());
      write_text_file(folder_ / "metrics" / name, text);
    }
  }

  void write_rest(const std::string& name) const {
    std::vector<std::pair<const char*, std::string>> tags{
        {"mlflow.runName", name}, {"mlflow.source.name", "trireme"}, {"trireme.run", fs::absolute(run_.dir).string()}};
    if (const auto starts = run_.events_of("start"); !starts.empty()) {
      Json fields = *starts.front()->fields;  // model, parameters, ranks: run_import.h takes them back
      for (const char* known : {"event", "time"}) fields.erase(known);
      tags.emplace_back("trireme.start", line_of(fields));
    }
    fs::create_directories(folder_ / "tags");
    for (const auto& [tag, value] : tags) write_text_file(folder_ / "tags" / tag, value);
    fs::create_directories(folder_ / "artifacts");
    if (!run_.recipe.empty()) write_text_file(folder_ / "artifacts" / "recipe.toml", run_.recipe);
  }

  std::string meta(const std::string& id, const std::string& experiment, const std::string& name,
                   const fs::path& place) const {
    const auto stops = run_.events_of("stop");
    const bool ended = !stops.empty() && stops.back() == &run_.events.back();
    const int status = !ended ? kRuns : stops.back()->text_of("why") == "finished" ? kFinished : kKilled;
    return fmt::format(
        "artifact_uri: {}\nend_time: {}\nentry_point_name: ''\nexperiment_id: '{}'\nlifecycle_stage: active\nrun_id: "
        "{}\n"
        "run_name: {}\nrun_uuid: {}\nsource_name: ''\nsource_type: 4\nsource_version: ''\nstart_time: {}\nstatus: {}\n"
        "tags: []\nuser_id: ''\n",
        yaml_text(file_uri(place / "artifacts")), ended ? std::to_string(milliseconds(stops.back()->time)) : "null",
        experiment, id, yaml_text(name), id, milliseconds(started()), status);
  }

 private:
  static std::int64_t milliseconds(double seconds) { return std::llround(seconds * 1000); }
  double started() const { return run_.events.empty() ? 0 : run_.events.front().time; }

  const fs::path& folder_;
  const RunFiles& run_;
};

}  // namespace

void write_mlflow(const fs::path& mlruns, const MlflowExperiment& experiment) {
  const fs::path store = fs::absolute(mlruns).lexically_normal();
  // Digits, as MLflow makes them; 0 is its own default.
  const std::string id = std::to_string(std::stoull(id_of(experiment.name).substr(0, 14), nullptr, 16) + 1);
  const fs::path folder = store / id;
  fs::create_directories(folder);
  double created = 0;
  for (const MlflowExperiment::Run& given : experiment.runs) {
    const RunFiles run = read_run(given.folder, Reading::kLenient);
    const std::string run_id = id_of(experiment.name + "\n" + fs::canonical(given.folder).string());
    if (!run.events.empty() && (created == 0 || run.events.front().time < created)) created = run.events.front().time;
    const fs::path half = folder / (run_id + ".new");  // appears whole
    fs::remove_all(half);
    const RunExport writer(half, run);
    writer.write_parameters();
    writer.write_metrics();
    writer.write_rest(given.name);
    write_text_file(half / "meta.yaml", writer.meta(run_id, id, given.name, folder / run_id));
    fs::remove_all(folder / run_id);
    fs::rename(half, folder / run_id);
  }
  const auto when = static_cast<std::int64_t>(created * 1000);
  write_text_file(folder / "meta.yaml",
                  fmt::format("artifact_location: {}\ncreation_time: {}\nexperiment_id: '{}'\nlast_update_time: {}\n"
                              "lifecycle_stage: active\nname: {}\n",
                              yaml_text(file_uri(folder)), when, id, when, yaml_text(experiment.name)));
}

}  // namespace trireme::observe
