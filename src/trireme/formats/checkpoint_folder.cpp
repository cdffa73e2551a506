#include "trireme/formats/checkpoint_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

#include "trireme/base/mapped_file.h"
#include "trireme/base/text.h"
#include "trireme/formats/block_reader.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/safetensors.h"

namespace trireme::formats {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxSmallFile = std::uint64_t{1} << 30;

}  // namespace

std::string checkpoint_name(std::int64_t step) { return fmt::format("step-{:08}", step); }

std::optional<std::int64_t> checkpoint_step(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix) || name.size() < kPrefix.size() + 8) return std::nullopt;
  std::int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  return error == std::errc{} && at == end && step >= 0 ? std::optional(step) : std::nullopt;
}

std::vector<std::int64_t> list_checkpoints(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (const auto step = checkpoint_step(entry->path().filename().string())) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

CheckpointFolder::CheckpointFolder(fs::path path) : path_(std::move(path)) {
  const fs::path manifest = path_ / kManifestFile;
  manifest_ = parse_manifest(read_text_file(manifest, kMaxSmallFile), manifest.string());
  for (const auto& [name, sum] : manifest_.files) {
    std::string text = read_text_file(path_ / name, kMaxSmallFile);
    if (checksum(text) != sum) {
      throw FormatError(fmt::format("{}: is damaged: its content does not have its checksum", (path_ / name).string()),
                        kUseOlderCheckpoint);
    }
    texts_[name] = std::move(text);
  }
  if (manifest_.version1) take_version1();
  for (const StoredPart& part : manifest_.parts) {
    const fs::path file = path_ / part.name;
    std::error_code error;
    const std::uint64_t size = fs::file_size(file, error);
    if (error)
      throw IoError(fmt::format("{}: cannot be read: {}", file.string(), error.message()), kUseOlderCheckpoint);
    if (size != part.bytes) {
      throw FormatError(fmt::format("{}: has {} bytes, but was written with {}", file.string(), size, part.bytes),
                        kUseOlderCheckpoint);
    }
  }
}

/// One file with whole tensors and a checksum each; its header says where they are.
void CheckpointFolder::take_version1() {
  const SafetensorsFile file(path_ / kStateFile);
  const SafetensorsHeader& header = file.header();
  const auto refuse = [&](const std::string& why) {
    throw FormatError(fmt::format("{}: {}", file.path().string(), why), kUseOlderCheckpoint);
  };
  if (checksum(header.text) != manifest_.version1->header) {
    refuse("its header is damaged: it does not have its checksum");
  }
  StoredPart part{.name = std::string(kStateFile), .bytes = header.file_bytes(), .checks = {}};
  for (const std::uint32_t at : header.by_offset) {
    const TensorInfo& tensor = header.tensors[at];
    const auto sum = manifest_.version1->tensors.find(tensor.name);
    if (sum == manifest_.version1->tensors.end()) {
      refuse(fmt::format("tensor {} is not in the manifest", shown(tensor.name)));
    }
    const std::uint64_t begin = header.data_begin() + tensor.begin;
    if (tensor.bytes() > 0) part.checks.push_back({begin, begin + tensor.bytes(), sum->second});
    StoredTensor& stored =
        manifest_.tensors[tensor.name] = {.dtype = tensor.dtype, .shape = tensor.shape, .slices = {}};
    const auto elements = static_cast<std::int64_t>(tensor.bytes() / stored.element_bytes());
    if (elements > 0) stored.slices = {{.part = 0, .at = begin, .strips = {{0, elements}}}};
  }
  for (const auto& [name, sum] : manifest_.version1->tensors) {
    if (!manifest_.tensors.contains(name)) refuse(fmt::format("tensor {} is missing", shown(name)));
  }
  manifest_.parts = {std::move(part)};
}

void CheckpointFolder::refuse_block(std::size_t part, const Checked& check, std::string_view why) const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : manifest_.tensors) {
    for (const StoredSlice& slice : tensor.slices) {
      const std::uint64_t end = slice.at + static_cast<std::uint64_t>(slice.elements()) * tensor.element_bytes();
      if (slice.part == part && slice.at < check.end && end > check.begin) {
        names.push_back(shown(name));
        break;
      }
    }
  }
  const std::size_t listed = std::min<std::size_t>(names.size(), 3);
  std::string what =
      names.empty() ? "its header"
                    : fmt::format("tensor {}",
                                  fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(listed), ", "));
  if (listed < names.size()) what += fmt::format(" and {} more", names.size() - listed);
  throw FormatError(fmt::format("{}: {}, bytes {} to {}, is damaged: {}", part_path(part).string(), what, check.begin,
                                check.end, why),
                    kUseOlderCheckpoint);
}

void CheckpointFolder::fetch(std::vector<Fetch> wanted, int threads) const {
  std::erase_if(wanted, [](const Fetch& fetch) { return fetch.bytes == 0; });
  std::ranges::sort(wanted,
                    [](const Fetch& a, const Fetch& b) { return std::pair(a.part, a.at) < std::pair(b.part, b.at); });
  // Stretches that follow each other both in the file and in memory are one.
  std::size_t kept = 0;
  for (const Fetch& fetch : wanted) {
    if (kept > 0) {
      Fetch& last = wanted[kept - 1];
      if (last.part == fetch.part && last.at + last.bytes == fetch.at && last.to + last.bytes == fetch.to) {
        last.bytes += fetch.bytes;
        continue;
      }
    }
    wanted[kept++] = fetch;
  }
  wanted.resize(kept);
  std::vector<BlockRead> reads;
  for (std::size_t begin = 0; begin < wanted.size();) {
    std::size_t end = begin;
    while (end < wanted.size() && wanted[end].part == wanted[begin].part) ++end;
    const auto& checks = manifest_.parts[wanted[begin].part].checks;
    std::size_t first = begin;
    auto check = std::ranges::upper_bound(checks, wanted[begin].at, {}, &Checked::end);
    for (; check != checks.end() && first < end; ++check) {
      while (first < end && wanted[first].at + wanted[first].bytes <= check->begin) ++first;
      std::size_t last = first;
      while (last < end && wanted[last].at < check->end) ++last;
      if (last > first) {
        reads.push_back(
            {.part = wanted[begin].part, .check = *check, .fetches = std::span(wanted).subspan(first, last - first)});
      }
    }
    begin = end;
  }
  read_blocks(*this, reads, threads,
              [this](std::size_t part, const Checked& check, std::string_view why) { refuse_block(part, check, why); });
}

void CheckpointFolder::verify(BlockShare share, int threads) const {
  std::vector<BlockRead> reads;
  std::size_t number = 0;
  for (std::size_t part = 0; part < manifest_.parts.size(); ++part) {
    for (const Checked& check : manifest_.parts[part].checks) {
      if (number++ % static_cast<std::size_t>(share.count) != static_cast<std::size_t>(share.index)) continue;
      reads.push_back({.part = part, .check = check, .fetches = {}});
    }
  }
  read_blocks(*this, reads, threads,
              [this](std::size_t part, const Checked& check, std::string_view why) { refuse_block(part, check, why); });
}

const StoredTensor& CheckpointFolder::tensor(std::string_view name) const {
  const auto found = manifest_.tensors.find(name);
  if (found != manifest_.tensors.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [other, tensor] : manifest_.tensors) names.push_back(other);
  throw FormatError(fmt::format("{}: there is no tensor {}{}", path_.string(), shown(name), did_you_mean(name, names)));
}

std::vector<std::byte> CheckpointFolder::read(std::string_view name) const {
  const StoredTensor& stored = tensor(name);
  std::vector<std::byte> bytes(stored.bytes());
  std::vector<Fetch> fetches;
  add_fetches(stored, 0, static_cast<std::int64_t>(bytes.size() / stored.element_bytes()), bytes.data(), fetches);
  fetch(std::move(fetches));
  return bytes;
}

void add_fetches(const StoredTensor& tensor, std::int64_t begin, std::int64_t end, std::byte* to,
                 std::vector<Fetch>& fetches) {
  const std::size_t element = tensor.element_bytes();
  for (const StoredSlice& slice : tensor.slices) {
    std::int64_t before = 0;  // elements of the slice before the strip
    for (const Strip& strip : slice.strips) {
      // Only the stretches that can overlap: the others are skipped by division.
      const std::int64_t stride = std::max<std::int64_t>(strip.stride, 1);
      std::int64_t i =
          strip.times == 1 ? 0 : std::max<std::int64_t>(0, (begin - strip.begin - strip.count + stride) / stride);
      for (; i < strip.times; ++i) {
        const std::int64_t first = strip.begin + i * strip.stride;
        if (first >= end) break;
        const std::int64_t from = std::max(first, begin), until = std::min(first + strip.count, end);
        if (from >= until) continue;
        fetches.push_back(
            {.part = slice.part,
             .at = slice.at + static_cast<std::uint64_t>(before + i * strip.count + from - first) * element,
             .bytes = static_cast<std::uint64_t>(until - from) * element,
             .to = to + static_cast<std::size_t>(from - begin) * element});
      }
      before += strip.count * strip.times;
    }
  }
}

const std::string& CheckpointFolder::text(std::string_view file) const {
  const auto found = texts_.find(file);
  if (found == texts_.end()) throw FormatError(fmt::format("{}: there is no {}", path_.string(), file));
  return found->second;
}

std::optional<CheckpointFolder> newest_checkpoint(const fs::path& folder, std::vector<DamagedCheckpoint>& damaged) {
  const auto steps = list_checkpoints(folder);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const fs::path path = folder / checkpoint_name(*step);
    try {
      CheckpointFolder checkpoint(path);
      checkpoint.verify();
      return checkpoint;
    } catch (const IoError& error) {
      damaged.push_back({path, error.message()});
    }
  }
  return std::nullopt;
}

bool remove_checkpoint(const fs::path& folder, std::int64_t step) {
  std::error_code error;
  const fs::path path = folder / checkpoint_name(step), away = path.string() + ".tmp";
  fs::rename(path, away, error);
  if (error) return false;
  fs::remove_all(away, error);
  return !error;
}

std::vector<std::int64_t> prune_checkpoints(const fs::path& folder, const KeepRules& rules) {
  const auto steps = list_checkpoints(folder);
  if (rules.last <= 0 || steps.size() <= static_cast<std::size_t>(rules.last)) return {};
  std::set<std::int64_t> kept(steps.end() - static_cast<std::ptrdiff_t>(rules.last), steps.end());
  std::vector<std::pair<double, std::int64_t>> ranked;
  for (const std::int64_t step : steps) {
    if (rules.every > 0 && step % rules.every == 0) kept.insert(step);
    if (rules.best <= 0) continue;
    try {
      const fs::path file = folder / checkpoint_name(step) / kManifestFile;
      const auto metric = parse_manifest(read_text_file(file, kMaxSmallFile), file.string()).metric;
      if (metric) ranked.emplace_back(*metric, step);
    } catch (const IoError&) {  // a damaged one is not among the best
    }
  }
  std::ranges::sort(ranked);
  for (std::size_t i = 0; i < std::min(ranked.size(), static_cast<std::size_t>(rules.best)); ++i) {
    kept.insert(ranked[i].second);
  }
  std::vector<std::int64_t> gone;
  for (const std::int64_t step : steps) {
    if (!kept.contains(step) && remove_checkpoint(folder, step)) gone.push_back(step);
  }
  return gone;
}

void sweep_unfinished(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> unfinished;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".tmp") unfinished.push_back(entry->path());
  }
  for (const fs::path& path : unfinished) fs::remove_all(path, error);
}

}  // namespace trireme::formats
