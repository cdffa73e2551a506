#include "trireme/experiment/store.h"

#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/observe/json_values.h"
#include "trireme/observe/run_reader.h"

namespace trireme::experiment {
namespace {

namespace fs = std::filesystem;

constexpr int kVersion = 1;
constexpr const char* kTables = R"(
CREATE TABLE experiment(id INTEGER PRIMARY KEY, folder TEXT NOT NULL UNIQUE, name TEXT NOT NULL, search TEXT NOT NULL,
  state TEXT NOT NULL, created REAL NOT NULL, max_steps INTEGER NOT NULL, best_trial INTEGER, best_loss REAL);
CREATE TABLE trial(experiment INTEGER NOT NULL REFERENCES experiment ON DELETE CASCADE, number INTEGER NOT NULL,
  draw INTEGER NOT NULL, state TEXT NOT NULL, setting TEXT NOT NULL, step INTEGER NOT NULL, until INTEGER NOT NULL,
  loss REAL, run TEXT NOT NULL, PRIMARY KEY(experiment, number)) WITHOUT ROWID;
CREATE TABLE attempt(experiment INTEGER NOT NULL REFERENCES experiment ON DELETE CASCADE, trial INTEGER NOT NULL,
  number INTEGER NOT NULL, begun REAL NOT NULL, step INTEGER, PRIMARY KEY(experiment, trial, number)) WITHOUT ROWID;
CREATE TABLE metric(experiment INTEGER NOT NULL REFERENCES experiment ON DELETE CASCADE, trial INTEGER NOT NULL,
  name TEXT NOT NULL, step INTEGER NOT NULL, value REAL, PRIMARY KEY(experiment, trial, name, step)) WITHOUT ROWID;
CREATE TABLE checkpoint(experiment INTEGER NOT NULL REFERENCES experiment ON DELETE CASCADE, trial INTEGER NOT NULL,
  step INTEGER NOT NULL, path TEXT NOT NULL, bytes INTEGER, PRIMARY KEY(experiment, trial, step)) WITHOUT ROWID;
CREATE TABLE event(id INTEGER PRIMARY KEY, experiment INTEGER NOT NULL REFERENCES experiment ON DELETE CASCADE,
  trial INTEGER NOT NULL, time REAL NOT NULL, kind TEXT NOT NULL, fields TEXT NOT NULL);
CREATE TABLE slot(experiment INTEGER NOT NULL REFERENCES experiment ON DELETE CASCADE, trial INTEGER NOT NULL,
  node INTEGER NOT NULL, slots INTEGER NOT NULL, PRIMARY KEY(experiment, trial, node)) WITHOUT ROWID;
)";

[[noreturn]] void fail_store(sqlite3* handle, std::string_view what) {
  throw IoError(fmt::format("the store of experiments: {}: {}", what, ::sqlite3_errmsg(handle)),
                "it can be deleted and rebuilt from the folders: trireme experiments import DIR...");
}

/// A prepared statement; values are bound in their order.
class Statement {
 public:
  Statement(sqlite3* handle, const std::string& text) : handle_(handle) {
    if (::sqlite3_prepare_v2(handle, text.c_str(), -1, &statement_, nullptr) != SQLITE_OK) fail_store(handle, text);
  }
  ~Statement() { ::sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& bind(std::int64_t value) {
    ::sqlite3_bind_int64(statement_, ++bound_, value);
    return *this;
  }
  Statement& bind(int value) { return bind(std::int64_t{value}); }
  Statement& bind(const char* value) { return bind(std::string_view(value)); }
  Statement& bind(const std::string& value) { return bind(std::string_view(value)); }
  /// SQLite keeps NaN as NULL, which is also how it is to be read: not a number.
  Statement& bind(double value) {
    ::sqlite3_bind_double(statement_, ++bound_, value);
    return *this;
  }
  Statement& bind(std::string_view value) {
    ::sqlite3_bind_text(statement_, ++bound_, value.data(), static_cast<int>(value.size()), SQLITE_TRANSIENT);
    return *this;
  }
  template <typename T>
  Statement& bind(const std::optional<T>& value) {
    if (value) return bind(*value);
    ::sqlite3_bind_null(statement_, ++bound_);
    return *this;
  }
  /// False: there is no further row.
  bool step() {
    const int code = ::sqlite3_step(statement_);
    if (code != SQLITE_ROW && code != SQLITE_DONE) fail_store(handle_, ::sqlite3_sql(statement_));
    return code == SQLITE_ROW;
  }
  /// Runs it with what is bound; ready to be bound again.
  void once() {
    step();
    ::sqlite3_reset(statement_);
    bound_ = 0;
  }

  int columns() const { return ::sqlite3_column_count(statement_); }
  bool is_null(int column) const { return ::sqlite3_column_type(statement_, column) == SQLITE_NULL; }
  std::int64_t integer(int column) const { return ::sqlite3_column_int64(statement_, column); }
  double real(int column) const { return ::sqlite3_column_double(statement_, column); }
  std::string text(int column) const {
    const auto* bytes = reinterpret_cast<const char*>(::sqlite3_column_text(statement_, column));
    return bytes == nullptr ? std::string() : std::string(bytes);
  }

 private:
  sqlite3* handle_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

void refuse_network(const fs::path& file) {
  struct statfs facts {};
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  if (::statfs(folder.c_str(), &facts) != 0) return;
  constexpr long kNfs = 0x6969, kSmb = 0x517B, kCifs = 0xFF534D42, kSmb2 = 0xFE534D42;
  const auto kind = static_cast<long>(facts.f_type);
  if (kind == kNfs || kind == kSmb || kind == kCifs || kind == kSmb2) {
    throw ConfigError(
        fmt::format("the store {} would lie on a network file system, where SQLite's locks do not hold", file.string()),
        "name a file on a local disk: --store FILE");
  }
}

}  // namespace

void Store::Closer::operator()(sqlite3* handle) const { ::sqlite3_close(handle); }

Store::Store(const fs::path& file) {
  if (file.has_parent_path()) fs::create_directories(file.parent_path());
  refuse_network(file);
  sqlite3* handle = nullptr;
  const int code = ::sqlite3_open(file.c_str(), &handle);
  handle_.reset(handle);
  if (code != SQLITE_OK) fail_store(handle, file.string());
  ::sqlite3_busy_timeout(handle, 10'000);
  run("PRAGMA journal_mode = WAL");
  run("PRAGMA synchronous = NORMAL");  // a crash of the machine may lose the last rows, which import() brings back
  run("PRAGMA foreign_keys = ON");
  run("BEGIN IMMEDIATE");  // of two that begin at once one makes the tables
  Statement version(handle, "PRAGMA user_version");
  version.step();
  const std::int64_t found = version.integer(0);
  if (found == 0) {
    run(kTables);
    run(fmt::format("PRAGMA user_version = {}", kVersion));
  }
  run("COMMIT");
  if (found != 0 && found != kVersion) {
    throw IoError(
        fmt::format("the store {} is of version {}, and this program has version {}", file.string(), found, kVersion),
        "delete it; trireme experiments import DIR... makes it again");
  }
}
Store::~Store() = default;

void Store::run(const std::string& statement) const {
  if (::sqlite3_exec(handle_.get(), statement.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) {
    fail_store(handle_.get(), statement.substr(0, 60));
  }
}

std::int64_t Store::experiment_id(const Overview& overview) const {
  const std::string folder = fs::absolute(overview.folder).lexically_normal().string();
  std::optional<int> best;
  std::optional<double> loss;
  if (overview.best) {
    best = overview.best->trial;
    loss = overview.best->value;
  }
  Statement(handle_.get(),
            "INSERT INTO experiment(folder, name, search, state, created, max_steps, best_trial, best_loss) "
            "VALUES(?,?,?,?,?,?,?,?) ON CONFLICT(folder) DO UPDATE SET name = excluded.name, search = excluded.search, "
            "state = excluded.state, created = excluded.created, max_steps = excluded.max_steps, "
            "best_trial = excluded.best_trial, best_loss = excluded.best_loss")
      .bind(folder)
      .bind(overview.experiment.name)
      .bind(overview.experiment.search)
      .bind(name(overview.state))
      .bind(overview.experiment.created)
      .bind(overview.experiment.options.max_steps)
      .bind(best)
      .bind(loss)
      .once();
  Statement id(handle_.get(), "SELECT id FROM experiment WHERE folder = ?");
  id.bind(folder).step();
  return id.integer(0);
}

void Store::import(const Overview& overview, const std::vector<int>* changed) {
  run("BEGIN IMMEDIATE");
  try {
    const std::int64_t id = experiment_id(overview);
    Statement(handle_.get(), "DELETE FROM trial WHERE experiment = ?").bind(id).once();
    Statement trials(handle_.get(), "INSERT INTO trial VALUES(?,?,?,?,?,?,?,?,?)");
    for (const TrialView& trial : overview.trials) {
      observe::Json setting = observe::Json::object();
      for (const Assignment& assignment : trial.setting) setting[assignment.key] = assignment.value;
      std::optional<double> loss;
      if (!trial.losses.empty()) loss = trial.losses.rbegin()->second;
      trials.bind(id).bind(trial.trial).bind(trial.draw).bind(name(trial.state)).bind(setting.dump());
      trials.bind(trial.step).bind(trial.until).bind(loss).bind(trial.run.string()).once();
      if (changed == nullptr || std::ranges::find(*changed, trial.trial) != changed->end()) import_run(id, trial);
    }
    run("COMMIT");
  } catch (...) {
    ::sqlite3_exec(handle_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
    throw;
  }
}

void Store::import_run(std::int64_t experiment, const TrialView& trial) {
  for (const char* table : {"attempt", "metric", "checkpoint", "event"}) {
    Statement(handle_.get(), fmt::format("DELETE FROM {} WHERE experiment = ? AND trial = ?", table))
        .bind(experiment)
        .bind(trial.trial)
        .once();
  }
  if (!fs::exists(trial.run / "events.jsonl")) return;
  Statement attempts(handle_.get(), "INSERT INTO attempt VALUES(?,?,?,?,?)");
  Statement metrics(handle_.get(), "INSERT OR REPLACE INTO metric VALUES(?,?,?,?,?)");
  Statement checkpoints(handle_.get(), "INSERT OR REPLACE INTO checkpoint VALUES(?,?,?,?,?)");
  Statement events(handle_.get(), "INSERT INTO event(experiment, trial, time, kind, fields) VALUES(?,?,?,?,?)");
  const observe::RunFiles files = observe::read_run(trial.run, observe::Reading::kLenient);
  for (const observe::StepRecord& step : files.steps) {
    metrics.bind(experiment).bind(trial.trial).bind("loss").bind(step.step).bind(step.loss).once();
  }
  int attempt = 0;
  for (const observe::EventRecord& event : files.events) {
    events.bind(experiment).bind(trial.trial).bind(event.time).bind(event.kind);
    events.bind(observe::line_of(*event.fields)).once();
    const auto step = event.step();
    if (event.kind == "start" || event.kind == "resumed") {
      attempts.bind(experiment).bind(trial.trial).bind(++attempt).bind(event.time).bind(step).once();
    } else if (event.kind == "eval" && step) {
      metrics.bind(experiment).bind(trial.trial).bind("validation_loss").bind(*step);
      metrics.bind(event.number_of("loss")).once();
    } else if (event.kind == "checkpoint" && step) {
      checkpoints.bind(experiment).bind(trial.trial).bind(*step).bind(event.text_of("path").value_or(""));
      checkpoints.bind(event.number_of("bytes")).once();
    }
  }
}

void Store::hold_slots(const fs::path& folder, const std::vector<std::pair<int, Grant>>& held) {
  const std::string path = fs::absolute(folder).lexically_normal().string();
  run("BEGIN IMMEDIATE");
  try {
    Statement(handle_.get(), "DELETE FROM slot WHERE experiment = (SELECT id FROM experiment WHERE folder = ?)")
        .bind(path)
        .once();
    Statement insert(handle_.get(), "INSERT OR REPLACE INTO slot SELECT id, ?, ?, ? FROM experiment WHERE folder = ?");
    for (const auto& [trial, grant] : held) insert.bind(trial).bind(grant.node).bind(grant.slots).bind(path).once();
    run("COMMIT");
  } catch (...) {
    ::sqlite3_exec(handle_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
    throw;
  }
}

std::vector<ExperimentRow> Store::experiments() const {
  Statement query(handle_.get(),
                  "SELECT folder, name, search, state, best_trial, best_loss, created, "
                  "(SELECT count(*) FROM trial WHERE trial.experiment = experiment.id) "
                  "FROM experiment ORDER BY created DESC, folder");
  std::vector<ExperimentRow> out;
  while (query.step()) {
    ExperimentRow row{.folder = query.text(0),
                      .name = query.text(1),
                      .search = query.text(2),
                      .state = query.text(3),
                      .trials = static_cast<int>(query.integer(7)),
                      .created = query.real(6)};
    if (!query.is_null(4)) row.best_trial = static_cast<int>(query.integer(4));
    if (!query.is_null(5)) row.best_loss = query.real(5);
    out.push_back(std::move(row));
  }
  return out;
}

std::vector<std::string> Store::rows(const std::string& query) const {
  Statement statement(handle_.get(), query);
  std::vector<std::string> out;
  while (statement.step()) {
    std::string row;
    for (int column = 0; column < statement.columns(); ++column) {
      row += (column == 0 ? "" : "|") + (statement.is_null(column) ? std::string("-") : statement.text(column));
    }
    out.push_back(std::move(row));
  }
  return out;
}

fs::path store_beside(const fs::path& experiment) {
  return fs::absolute(experiment).lexically_normal().parent_path() / "experiments.db";
}

}  // namespace trireme::experiment
