#include "trireme/dashboard/catalogue.h"

#include <algorithm>
#include <charconv>

#include "trireme/base/sha256.h"

namespace trireme::dashboard {
namespace {

namespace fs = std::filesystem;

constexpr int kDepth = 4;

bool holds_a_run(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "metrics.jsonl", ignored) || fs::exists(folder / "events.jsonl", ignored);
}

/// 7 of "0007" and of "0007-1"; -1 for another name.
int trial_number(const std::string& folder) {
  int number = -1;
  std::from_chars(folder.data(), folder.data() + folder.size(), number);
  return number;
}

class CatalogueWalk {
 public:
  CatalogueWalk(Catalogue& out, fs::path root, std::size_t most) : out_(out), root_(std::move(root)), most_(most) {}

  void look(const fs::path& folder, int depth) {
    std::error_code error;
    if (fs::exists(folder / "experiment.json", error)) return add_experiment(folder);
    if (holds_a_run(folder)) return add_run(folder, {}, -1);
    if (depth >= kDepth) return;
    for (const fs::path& below : folders_in(folder)) look(below, depth + 1);
  }

 private:
  static std::vector<fs::path> folders_in(const fs::path& folder) {
    std::error_code error;
    std::vector<fs::path> folders;
    for (fs::directory_iterator at(folder, fs::directory_options::skip_permission_denied, error), end;
         !error && at != end; at.increment(error)) {
      if (at->is_directory(error) && !at->is_symlink(error) && !at->path().filename().string().starts_with('.'))
        folders.push_back(at->path());
    }
    std::ranges::sort(folders);
    return folders;
  }
  std::string name_of(const fs::path& folder) const {
    const fs::path relative = folder.lexically_relative(root_);
    return relative == "." ? root_.filename().string() : relative.string();
  }
  void add_run(const fs::path& folder, const std::string& experiment, int trial) {
    if (out_.runs.size() >= most_) {
      out_.cut = true;
      return;
    }
    out_.runs.push_back(
        {.id = place_id(folder), .name = name_of(folder), .path = folder, .experiment = experiment, .trial = trial});
  }
  void add_experiment(const fs::path& folder) {
    const std::string id = place_id(folder);
    out_.experiments.push_back({.id = id, .name = name_of(folder), .path = folder});
    for (const fs::path& run : folders_in(folder / "trials")) {
      if (holds_a_run(run)) add_run(run, id, trial_number(run.filename().string()));
    }
  }

  Catalogue& out_;
  fs::path root_;
  std::size_t most_;
};

}  // namespace

std::string place_id(const fs::path& path) {
  const Sha256Digest digest = sha256(path.string());
  return to_hex({reinterpret_cast<const char*>(digest.data()), 6});
}

Catalogue find_runs(const std::vector<fs::path>& roots, std::size_t most) {
  Catalogue out;
  for (const fs::path& given : roots) {
    std::error_code error;
    const fs::path root = fs::weakly_canonical(given, error);
    if (!error) CatalogueWalk(out, root, most).look(root, 0);
  }
  // The same run may lie below two of the folders.
  const auto unique_by_id = [](auto& entries) {
    std::ranges::stable_sort(entries, {}, [](const auto& entry) { return entry.id; });
    entries.erase(
        std::unique(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.id == b.id; }),
        entries.end());
  };
  unique_by_id(out.runs);
  unique_by_id(out.experiments);
  return out;
}

}  // namespace trireme::dashboard
