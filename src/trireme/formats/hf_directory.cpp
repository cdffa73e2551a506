#include "trireme/formats/hf_directory.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "trireme/base/log.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/text.h"
#include "trireme/formats/format_error.h"

namespace trireme::formats {
namespace {

namespace fs = std::filesystem;

/// All that does not fit, as one error; names the first few in full.
class Problems {
 public:
  void add(std::string problem) {
    if (++count_ <= kShown) text_ += "\n  " + std::move(problem);
  }
  void throw_if_any(const fs::path& what) const {
    if (count_ == 0) return;
    const std::string more = count_ > kShown ? fmt::format("\n  and {} more", count_ - kShown) : "";
    throw FormatError(fmt::format("{}: the files of this model do not fit together ({}):{}{}", what.string(),
                                  counted(count_, "problem"), text_, more),
                      "fetch or save the model again");
  }

 private:
  static constexpr std::size_t kShown = 8;
  std::size_t count_ = 0;
  std::string text_;
};

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end; entry.increment(failed))
    names.push_back(entry->path().filename().string());
  std::ranges::sort(names);
  return names;
}

[[noreturn]] void no_weights(const fs::path& folder) {
  std::vector<std::string> names = names_in(folder);
  const bool pickled = std::ranges::any_of(names, [](const std::string& name) { return name.ends_with(".bin"); });
  if (names.size() > 12) names.resize(12);
  throw FormatError(fmt::format("{}: has neither {} nor {}; it has {}", folder.string(), kHfWeights, kHfIndex,
                                names.empty() ? "no files" : listed(names)),
                    pickled
                        ? "convert the .bin files to safetensors with the tool that made them; they may contain code "
                          "and are not read"
                        : "name the folder that holds the weights");
}

/// Shards that the index should name by what the names themselves say, and shards that lie about.
void check_shard_names(const fs::path& folder, const std::set<std::string>& named, Problems& problems) {
  std::map<std::size_t, std::set<std::size_t>> numbers;  // shards -> those that are named
  for (const std::string& name : named) {
    const auto number = parse_hf_shard_name(name);
    if (!number) continue;
    if (number->shard == 0 || number->shard > number->shards)
      problems.add(fmt::format("the index names {}, a shard {} of {}", name, number->shard, number->shards));
    numbers[number->shards].insert(number->shard);
  }
  for (const auto& [shards, present] : numbers) {
    // One gap tells it all; a hostile name may claim any number of shards.
    for (std::size_t shard = 1; shard <= shards; ++shard) {
      if (present.contains(shard)) continue;
      problems.add(fmt::format("the index names no tensor in {}", hf_shard_name(shard, shards)));
      break;
    }
  }
  for (const std::string& name : names_in(folder)) {
    const auto number = parse_hf_shard_name(name);
    if (!number || named.contains(name)) continue;
    if (numbers.contains(number->shards)) {
      problems.add(fmt::format("{} is there, but the index names no tensor in it", name));
    } else {
      log_warn("{}: {} belongs to another split of the model and is not read", folder.string(), name);
    }
  }
}

}  // namespace

HfDirectory::HfDirectory(fs::path path) : path_(std::move(path)), config_(read_hf_config(path_ / "config.json")) {
  const bool whole = fs::exists(path_ / kHfWeights), split = fs::exists(path_ / kHfIndex);
  if (whole) {
    if (split) log_warn("{}: {} is read, {} is not", path_.string(), kHfWeights, kHfIndex);
    files_.emplace_back(path_ / kHfWeights);
  } else if (split) {
    open_split();
  } else {
    no_weights(path_);
  }
  for (const SafetensorsFile& file : files_) {
    for (const TensorInfo& tensor : file.header().tensors) tensors_.push_back({&tensor, &file});
  }
  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), std::size_t{0});
  std::ranges::sort(by_name_, {}, [&](std::size_t i) -> std::string_view { return tensors_[i].info->name; });
}

void HfDirectory::open_split() {
  index_ = parse_hf_index(read_text_file(path_ / kHfIndex, kMaxIndexBytes), (path_ / kHfIndex).string());
  Problems problems;
  std::set<std::string> named;
  for (const auto& [tensor, name] : index_->weight_map) named.insert(name);
  check_shard_names(path_, named, problems);

  std::map<std::string_view, std::size_t> opened;  // name -> position in files_
  for (const std::string& name : named) {
    if (!fs::exists(path_ / name)) {
      problems.add(fmt::format("{} is not there; the index names it", shown(name)));
      continue;
    }
    opened.emplace(name, files_.size());
    files_.emplace_back(path_ / name);
  }
  std::map<std::string_view, std::string_view> file_of;
  for (const auto& [tensor, name] : index_->weight_map) {
    file_of.emplace(tensor, name);
    const auto file = opened.find(name);
    if (file != opened.end() && files_[file->second].header().find(tensor) == nullptr)
      problems.add(fmt::format("tensor {} is not in {}, where the index has it", shown(tensor), name));
  }
  for (const auto& [name, position] : opened) {
    for (const TensorInfo& tensor : files_[position].header().tensors) {
      const auto found = file_of.find(tensor.name);
      if (found == file_of.end()) {
        problems.add(fmt::format("tensor {} is in {}, but not in the index", shown(tensor.name), name));
      } else if (found->second != name) {
        problems.add(
            fmt::format("tensor {} is in {}, but the index has it in {}", shown(tensor.name), name, found->second));
      }
    }
  }
  problems.throw_if_any(path_ / kHfIndex);
}

const HfTensor* HfDirectory::find(std::string_view name) const {
  const auto name_at = [&](std::size_t i) -> std::string_view { return tensors_[i].info->name; };
  const auto found = std::ranges::lower_bound(by_name_, name, {}, name_at);
  return found != by_name_.end() && name_at(*found) == name ? &tensors_[*found] : nullptr;
}

const HfTensor& HfDirectory::tensor(std::string_view name) const {
  if (const HfTensor* found = find(name)) return *found;
  std::vector<std::string> names;
  for (const HfTensor& tensor : tensors_) names.push_back(tensor.info->name);
  throw FormatError(fmt::format("{}: has no tensor {}{}", path_.string(), shown(name), did_you_mean(name, names)));
}

}  // namespace trireme::formats
