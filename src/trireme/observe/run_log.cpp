#include "trireme/observe/run_log.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/new_file.h"
#include "trireme/base/wall_clock.h"

namespace trireme::observe {
namespace {

namespace fs = std::filesystem;

bool has_content(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return !error && size > 0;
}

/// Whether a line of metrics or hashes stays when a run goes on after `last_step`.
bool stays(const std::string& line, std::int64_t last_step, const fs::path& path, std::size_t number) {
  const Json value = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto step = value.is_object() ? value.find("step") : value.end();
  if (step == value.end() || !step->is_number_integer()) {
    // A run must go on in spite of a line that a power failure has damaged.
    log_warn("{}:{}: no step can be read from this line; it is dropped", path.string(), number);
    return false;
  }
  return step->get<std::int64_t>() <= last_step;
}

fs::path prepared(fs::path dir, std::optional<std::int64_t> resume_after_step) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) {
    throw IoError(fmt::format("run folder {} cannot be created: {}", dir.string(), error.message()),
                  "name a folder that can be written to");
  }
  if (!resume_after_step) {
    for (const char* name : {"metrics.jsonl", "hashes.jsonl"}) {
      if (!has_content(dir / name)) continue;
      throw ConfigError(fmt::format("{} already holds a run: its {} is not empty", dir.string(), name),
                        "resume that run, or name another folder");
    }
    cut_back(dir / "events.jsonl", std::nullopt);  // of a run that ended before its first step
    return dir;
  }
  TRIREME_CHECK(*resume_after_step >= 0, "a run cannot resume after step {}", *resume_after_step);
  cut_back(dir / "metrics.jsonl", resume_after_step);
  cut_back(dir / "hashes.jsonl", resume_after_step);
  cut_back(dir / "events.jsonl", std::nullopt);
  return dir;
}

double now_in_seconds() {
  return std::floor(wall_seconds() * 1000) / 1000;  // milliseconds: what a line needs, and short in text
}

}  // namespace

void cut_back(const fs::path& path, std::optional<std::int64_t> last_step) {
  if (!has_content(path)) return;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw IoError(fmt::format("{}: cannot be read", path.string()), "check the permissions of the run folder");
  NewFile kept(path);
  std::string line, block;
  std::uint64_t position = 0;
  std::size_t dropped = 0;
  const auto write_block = [&] {
    kept.write_at(position, std::as_bytes(std::span(block)));
    position += block.size();
    block.clear();
  };
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    const bool cut = file.eof();  // the last line has no end
    if (cut || (last_step && !stays(line, *last_step, path, number))) {
      ++dropped;
      continue;
    }
    block += line;
    block += '\n';
    if (block.size() > (1U << 20)) write_block();
  }
  if (file.bad()) throw IoError(fmt::format("{}: cannot be read to its end", path.string()));
  if (dropped == 0) return;
  write_block();
  kept.publish();
  log_debug("{}: dropped {} lines that will be written again", path.string(), dropped);
}

RunLog::RunLog(fs::path dir, std::optional<std::int64_t> resume_after_step)
    : dir_(prepared(std::move(dir), resume_after_step)),
      metrics_(dir_ / "metrics.jsonl"),
      events_(dir_ / "events.jsonl"),
      hashes_(dir_ / "hashes.jsonl"),
      tensorboard_(dir_ / "tensorboard", resume_after_step) {
  if (resume_after_step) event("resume", {{"step", *resume_after_step}});
}

void RunLog::step(const StepRecord& record) {
  metrics_.append_or_keep(line_of(to_json(record)) + '\n');
  std::vector<Scalar> scalars{{"train/loss", record.loss},
                              {"train/grad_norm", record.grad_norm},
                              {"train/lr", record.lr},
                              {"train/tokens", static_cast<double>(record.tokens)},
                              {"speed/tokens_per_s", record.tokens_per_s},
                              {"speed/step_seconds", record.seconds},
                              {"speed/compute_seconds", record.breakdown.compute},
                              {"speed/data_seconds", record.breakdown.data},
                              {"speed/comm_seconds", record.breakdown.comm},
                              {"speed/overhead_seconds", record.breakdown.overhead},
                              {"memory/bytes", static_cast<double>(record.memory)}};
  if (record.mfu) scalars.push_back({"speed/mfu", *record.mfu});
  if (record.noise_scale) scalars.push_back({"train/noise_scale", *record.noise_scale});
  if (record.staleness) scalars.push_back({"train/staleness", *record.staleness});
  std::vector<std::string> tags;  // borrowed by the scalars
  for (const NamedLoss& term : record.losses) tags.push_back("losses/" + term.name);
  for (std::size_t i = 0; i < tags.size(); ++i) scalars.push_back({tags[i], record.losses[i].mean});
  tensorboard_.scalars(record.step, scalars);
}

void RunLog::hashes(std::int64_t step, std::uint64_t total,
                    std::span<const std::pair<std::string, std::uint64_t>> tensors) {
  Json by_name = Json::object();
  // Straight into the object: names are unique in a run, and looking for each would be quadratic in them.
  auto& entries = by_name.get_ref<Json::object_t&>();
  entries.reserve(tensors.size());
  for (const auto& [name, bits] : tensors)
    static_cast<Json::object_t::Container&>(entries).emplace_back(name, hex(bits));
  hashes_.append_or_keep(line_of({{"step", step}, {"total", hex(total)}, {"tensors", std::move(by_name)}}) + '\n');
}

void RunLog::event(std::string_view kind, Json fields) {
  TRIREME_CHECK(fields.is_null() || fields.is_object(), "the fields of event {} are no object", kind);
  Json line{{"event", kind}, {"time", now_in_seconds()}};
  if (fields.is_object()) line.update(with_texts(fields));
  events_.append_or_keep(line_of(line) + '\n');
  if (kind != "eval") return;
  const auto step = line.find("step");
  if (step == line.end() || !step->is_number_integer()) return;
  std::vector<std::pair<std::string, double>> numbers;
  for (const auto& [name, value] : line.items()) {
    if (name == "step" || name == "time") continue;
    if (const auto value_of = as_number(value)) numbers.emplace_back(fmt::format("{}/{}", kind, name), *value_of);
  }
  if (numbers.empty()) return;
  std::vector<Scalar> scalars;
  for (const auto& [name, value] : numbers) scalars.push_back({name, value});
  tensorboard_.scalars(step->get<std::int64_t>(), scalars);
}

}  // namespace trireme::observe
