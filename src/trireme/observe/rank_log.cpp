#include "trireme/observe/rank_log.h"

#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/observe/run_log.h"

namespace trireme::observe {
namespace {

namespace fs = std::filesystem;

/// The rank whose file it is.
std::optional<int> rank_of(const fs::path& path) {
  if (path.extension() != ".jsonl") return std::nullopt;
  const std::string stem = path.stem().string();
  int rank = 0;
  const auto [end, error] = std::from_chars(stem.data(), stem.data() + stem.size(), rank);
  if (error != std::errc() || end != stem.data() + stem.size()) return std::nullopt;
  return rank;
}

fs::path prepared(const fs::path& run, int rank, int ranks, std::optional<std::int64_t> resume_after_step) {
  const fs::path folder = run / "ranks";
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw IoError(fmt::format("{} cannot be created: {}", folder.string(), error.message()),
                  "name a run folder that can be written to");
  }
  const fs::path path = folder / fmt::format("{:05}.jsonl", rank);
  if (!resume_after_step) return path;
  cut_back(path, resume_after_step);
  if (rank != 0) return path;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (rank_of(entry.path()).value_or(0) >= ranks) cut_back(entry.path(), resume_after_step);
  }
  return path;
}

}  // namespace

RankLog::RankLog(const fs::path& run, int rank, int ranks, std::optional<std::int64_t> resume_after_step)
    : rank_(rank), file_(prepared(run, rank, ranks, resume_after_step)) {}

void RankLog::metric(const Metric& metric) noexcept {
  if (metric.rank != rank_) return;
  try {
    const std::lock_guard lock(mutex_);
    RankRecord& record = open_[metric.step];
    record.step = metric.step;
    record.metrics[std::string(metric.name)] = metric.value;
  } catch (...) {  // no memory for a metric: it is not worth a failure
  }
}

void RankLog::end_step(std::int64_t step) {
  std::string lines;
  {
    const std::lock_guard lock(mutex_);
    while (!open_.empty() && open_.begin()->first <= step) {
      const RankRecord& record = open_.begin()->second;
      Json metrics = Json::object();
      for (const auto& [name, value] : record.metrics) metrics[name] = number(value);
      lines += line_of({{"step", record.step}, {"metrics", std::move(metrics)}}) + '\n';
      open_.erase(open_.begin());
    }
  }
  if (!lines.empty()) file_.append_or_keep(lines);
}

std::map<int, std::vector<RankRecord>> read_ranks(const fs::path& run) {
  std::map<int, std::vector<RankRecord>> all;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run / "ranks", error)) {
    const auto rank = rank_of(entry.path());
    if (!rank) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    std::string line;
    while (std::getline(file, line) && !file.eof()) {
      try {
        all[*rank].push_back(rank_from(Json::parse(line)));
      } catch (const Json::parse_error&) {
        log_warn("{}: a line is no JSON and is left out", entry.path().string());
      } catch (const IoError& wrong) {
        log_warn("{}: a line {}, and is left out", entry.path().string(), wrong.message());
      }
    }
  }
  return all;
}

}  // namespace trireme::observe
