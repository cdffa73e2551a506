#include "trireme/checkpoint/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/text.h"
#include "trireme/checkpoint/texts.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

/// "train.steps" -> "200", from a recipe that config::to_toml wrote.
std::map<std::string, std::string> keys_of(const std::string& toml) {
  std::map<std::string, std::string> keys;
  std::string section;
  for (const std::string& line : split(toml, '\n')) {
    if (line.starts_with('[')) {
      section = line.substr(1, line.rfind(']') - 1);
    } else if (const auto equals = line.find(" = "); equals != std::string::npos && !line.starts_with('#')) {
      keys[section + "." + line.substr(0, equals)] += line.substr(equals + 3);
    }
  }
  return keys;
}

constexpr std::uint64_t kMaxRecipeBytes = 16 << 20;
constexpr std::string_view kLockFile = "lock", kTimelineFile = "timeline.jsonl", kLogFile = "log.txt",
                           kSetAside = "set-aside-";

}  // namespace

RunLock::RunLock(const RunFolder& folder, std::chrono::milliseconds wait) {
  const fs::path file = folder.path / kLockFile;
  descriptor_ = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw IoError(fmt::format("{} cannot be made: {}", file.string(), std::strerror(errno)));
  const auto until = std::chrono::steady_clock::now() + wait;
  while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return;  // a file system without locks
    if (std::chrono::steady_clock::now() > until) {
      ::close(descriptor_);
      throw IoError(fmt::format("another process trains in {}", folder.path.string()),
                    "wait for it, or name another directory with --out");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

RunLock::~RunLock() { ::close(descriptor_); }

void check_no_run(const RunFolder& folder) {
  if (folder.holds_a_run()) {
    throw ConfigError(fmt::format("{} already holds a run", folder.path.string()),
                      "--resume goes on with it; or give another --out, or remove the folder");
  }
  std::error_code error;
  if (fs::exists(folder.path, error) && !fs::is_directory(folder.path, error)) {
    throw ConfigError(fmt::format("{} is a file, and a run needs a directory", folder.path.string()),
                      "give another --out");
  }
}

MadeRunFolder::MadeRunFolder(const RunFolder& folder) {
  std::error_code error;
  for (fs::path path = fs::absolute(folder.path).lexically_normal(); !path.empty() && !fs::exists(path, error);
       path = path.parent_path()) {
    if (path.has_filename()) made_.push_back(path);
  }
  fs::create_directories(folder.path, error);
  if (!error) return;
  const std::string why = error.message();
  for (const fs::path& path : made_) fs::remove(path, error);
  throw IoError(fmt::format("the run's directory {} cannot be made: {}", folder.path.string(), why),
                "look at the permissions and at the space that is left, or give another --out");
}

MadeRunFolder::~MadeRunFolder() {
  if (made_.empty()) return;
  std::error_code ignored;
  for (const std::string_view file : {kLockFile, kTimelineFile, kLogFile}) fs::remove(made_.front() / file, ignored);
  for (const fs::path& path : made_) {
    if (!fs::remove(path, ignored)) break;  // something is in it
  }
}

fs::path set_run_aside(const RunFolder& folder) {
  fs::path aside;
  int number = 1;
  do aside = folder.path / fmt::format("{}{}", kSetAside, number++);
  while (fs::exists(aside));
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(folder.path)) all.push_back(entry.path());
  fs::create_directory(aside);
  for (const fs::path& path : all) {
    const std::string name = path.filename().string();
    if (name != kLockFile && !name.starts_with(kSetAside)) fs::rename(path, aside / name);
  }
  return aside;
}

std::vector<std::string> recipe_changes(const RunFolder& folder, const spec::Recipe& recipe) {
  std::vector<std::string> changes;
  if (!fs::exists(folder.recipe())) return changes;
  const auto before = keys_of(read_text_file(folder.recipe(), kMaxRecipeBytes)), now = keys_of(config::to_toml(recipe));
  for (const auto& [key, value] : now) {
    const auto old = before.find(key);
    if (old == before.end()) {
      changes.push_back(fmt::format("{} = {} (was not set)", key, value));
    } else if (old->second != value) {
      changes.push_back(fmt::format("{} = {} (was {})", key, value, old->second));
    }
  }
  for (const auto& [key, value] : before) {
    if (!now.contains(key)) changes.push_back(fmt::format("{} is not set (was {})", key, value));
  }
  return changes;
}

spec::Recipe read_run_recipe(const fs::path& path) {
  const fs::path file = path / formats::kRecipeFile;
  if (!fs::exists(path)) throw ConfigError(fmt::format("{} does not exist", path.string()), "give the folder of a run");
  if (!fs::exists(file)) {
    throw ConfigError(
        fmt::format("{} is neither a run nor a checkpoint: it has no {}", path.string(), formats::kRecipeFile),
        "a run's folder is what `trireme train` was given as --out");
  }
  return spec::load_recipe({.file = file.string()}).value;
}

formats::CheckpointFolder open_checkpoint(const fs::path& path) {
  if (fs::exists(path / formats::kManifestFile)) return formats::CheckpointFolder(path);
  std::vector<formats::DamagedCheckpoint> damaged;
  auto found = formats::newest_checkpoint(RunFolder{path}.checkpoints(), damaged);
  for (const auto& [where, why] : damaged) log_warn("{} is damaged and not used: {}", where.string(), why);
  if (!found) {
    if (damaged.empty()) {
      throw ConfigError(fmt::format("{} has no checkpoint", path.string()),
                        "train it first: trireme train RECIPE --out " + path.string());
    }
    throw ConfigError(
        fmt::format("{} has no complete checkpoint: {}", path.string(), damaged.front().why),
        "give one of its checkpoints, RUN/checkpoints/step-N, to read what is whole of it, or train it anew");
  }
  return std::move(*found);
}

std::int64_t newest_whole(const std::filesystem::path& folder, comm::Group& group,
                          std::vector<formats::DamagedCheckpoint>& damaged, std::int64_t at_most) {
  // Rank 0 says which there are: another rank might see a folder that is just being removed.
  std::string listed;
  if (group.rank() == 0) {
    for (const std::int64_t step : formats::list_checkpoints(folder)) listed += formats::checkpoint_name(step) + "\n";
  }
  listed = all_texts(listed, group)[0];
  while (!listed.empty()) {
    listed.pop_back();
    const std::size_t begin = listed.rfind('\n') == std::string::npos ? 0 : listed.rfind('\n') + 1;
    const std::filesystem::path path = folder / listed.substr(begin);
    listed.resize(begin);
    const std::int64_t step = formats::checkpoint_step(path.filename().string()).value();
    if (at_most >= 0 && step > at_most) continue;
    std::string problem;
    try {
      formats::CheckpointFolder(path).verify({.index = group.rank(), .count = group.size()});
    } catch (const IoError& error) {
      problem = error.message();
    }
    std::string first;
    for (const std::string& theirs : all_texts(problem, group)) {
      if (first.empty()) first = theirs;
    }
    if (first.empty()) return step;
    damaged.push_back({path, first});
  }
  return -1;
}

}  // namespace trireme::checkpoint
