#include "trireme/formats/checkpoint_rewrite.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "trireme/base/error.h"
#include "trireme/base/new_file.h"
#include "trireme/formats/checkpoint_publish.h"
#include "trireme/formats/safetensors_writer.h"

namespace trireme::formats {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kBuffer = 4 * kCheckedBlock;

void check_free(const fs::path& to) {
  if (fs::exists(to)) {
    throw ConfigError(fmt::format("{} is already there", to.string()), "give another name, or remove it");
  }
}

/// Elements [begin, end) of a tensor.
struct ByteRange {
  const std::string* name = nullptr;
  const StoredTensor* tensor = nullptr;
  std::int64_t begin = 0, end = 0;
};

/// Reads a stretch piece by piece.
using Read = decltype(CheckpointStream::read);
void stream(const Read& read, const ByteRange& stretch, const std::function<void(std::span<const std::byte>)>& take) {
  const std::size_t element = stretch.tensor->element_bytes();
  const auto most = static_cast<std::int64_t>(kBuffer / element);
  std::vector<std::byte> buffer;
  for (std::int64_t at = stretch.begin; at < stretch.end; at += most) {
    const std::int64_t until = std::min(at + most, stretch.end);
    buffer.resize(static_cast<std::size_t>(until - at) * element);
    read(*stretch.name, at, until, buffer.data());
    take(buffer);
  }
}

Read reading(const CheckpointFolder& from) {
  return [&from](const std::string& name, std::int64_t begin, std::int64_t end, std::byte* to) {
    std::vector<Fetch> fetches;
    add_fetches(from.tensor(name), begin, end, to, fetches);
    from.fetch(std::move(fetches));
  };
}

/// A file that is written from its beginning to its end and summed by blocks.
class SummedFile {
 public:
  explicit SummedFile(fs::path path) : file_(std::move(path)) { block_.reserve(kCheckedBlock); }

  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const std::size_t count = std::min<std::size_t>(bytes.size(), kCheckedBlock - block_.size());
      block_.insert(block_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
      bytes = bytes.subspan(count);
      if (block_.size() == kCheckedBlock) flush();
    }
  }
  std::vector<Checked> finish() {
    flush();
    file_.publish();
    return std::move(checks_);
  }

 private:
  void flush() {
    if (block_.empty()) return;
    file_.write_at(at_, block_);
    checks_.push_back({.begin = at_, .end = at_ + block_.size(), .sum = checksum(block_)});
    at_ += block_.size();
    block_.clear();
  }

  NewFile file_;
  std::uint64_t at_ = 0;
  std::vector<std::byte> block_;
  std::vector<Checked> checks_;
};

/// Neighbouring stretches for each part, about the same bytes each.
std::vector<std::vector<ByteRange>> deal(const CheckpointManifest& manifest, int parts) {
  std::uint64_t total = 0, done = 0;
  for (const auto& [name, tensor] : manifest.tensors) total += tensor.bytes();
  std::vector<std::vector<ByteRange>> dealt(static_cast<std::size_t>(parts));
  for (const auto& [name, tensor] : manifest.tensors) {
    const std::size_t element = tensor.element_bytes();
    const auto elements = static_cast<std::int64_t>(tensor.bytes() / element);
    for (std::int64_t at = 0; at < elements;) {
      const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(
          static_cast<std::uint64_t>(parts) - 1, done * static_cast<std::uint64_t>(parts) / total));
      const std::uint64_t end_of_part = total * (part + 1) / static_cast<std::uint64_t>(parts);
      const auto room = static_cast<std::int64_t>((end_of_part - std::min(end_of_part, done) + element - 1) / element);
      const std::int64_t until = std::min(elements, at + std::max<std::int64_t>(1, room));
      dealt[part].push_back({&name, &tensor, at, until});
      done += static_cast<std::uint64_t>(until - at) * element;
      at = until;
    }
  }
  return dealt;
}

/// Writes the next part, of these stretches, and what the manifest says of it.
void add_part(CheckpointStream& from, std::span<const ByteRange> stretches, const fs::path& path) {
  std::vector<TensorSpec> specs;
  std::map<std::string, const ByteRange*, std::less<>> by_name;
  for (const ByteRange& stretch : stretches) {
    const bool whole =
        stretch.begin == 0 &&
        static_cast<std::uint64_t>(stretch.end) * stretch.tensor->element_bytes() == stretch.tensor->bytes();
    specs.push_back({.name = *stretch.name,
                     .dtype = stretch.tensor->dtype,
                     .shape = whole ? stretch.tensor->shape : std::vector<std::int64_t>{stretch.end - stretch.begin}});
    by_name[*stretch.name] = &stretch;
  }
  const SafetensorsHeader header = make_safetensors_header(std::move(specs), Metadata{{"format", "pt"}});
  SummedFile file(path);
  std::string prefix(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) prefix[i] = static_cast<char>(header.text.size() >> (8 * i) & 0xFF);
  prefix += header.text;
  file.append(std::as_bytes(std::span(prefix)));
  for (const std::uint32_t at : header.by_offset) {
    const ByteRange& stretch = *by_name.at(header.tensors[at].name);
    from.manifest.tensors.at(*stretch.name)
        .slices.push_back({.part = from.manifest.parts.size(),
                           .at = header.data_begin() + header.tensors[at].begin,
                           .strips = {{stretch.begin, stretch.end - stretch.begin}}});
    stream(from.read, stretch, [&](std::span<const std::byte> bytes) { file.append(bytes); });
  }
  from.manifest.parts.push_back(
      {.name = path.filename().string(), .bytes = header.file_bytes(), .checks = file.finish()});
}

}  // namespace

void reshard_checkpoint(const CheckpointFolder& from, const fs::path& to, int parts) {
  CheckpointStream same{.manifest = from.manifest(), .files = {}, .read = reading(from)};
  same.manifest.version = 2;
  same.manifest.version1.reset();
  same.manifest.program.clear();
  same.manifest.parts.clear();
  for (auto& [name, tensor] : same.manifest.tensors) tensor.slices.clear();
  for (const auto& [name, sum] : from.manifest().files) same.files[name] = from.text(name);
  write_streamed(std::move(same), to, parts);
}

void write_streamed(CheckpointStream from, const fs::path& to, int parts) {
  check_free(to);
  const fs::path temporary = unfinished(to);
  std::error_code error;
  fs::remove_all(temporary, error);
  fs::create_directories(temporary, error);
  if (error) throw IoError(fmt::format("{} cannot be made: {}", temporary.string(), error.message()));
  try {
    const auto dealt = deal(from.manifest, parts);
    for (std::size_t part = 0; part < dealt.size(); ++part) {
      if (!dealt[part].empty()) {
        add_part(from, dealt[part], temporary / part_name(static_cast<int>(part), parts));
      }
    }
    if (from.hash) from.manifest.hash = from.hash();
    publish(to, std::move(from.manifest), from.files);
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
}

std::int64_t export_checkpoint(const CheckpointFolder& from, const fs::path& to, Export what) {
  check_free(to);
  constexpr std::string_view kParam = "param/";
  std::vector<TensorSpec> specs;
  std::map<std::string, std::string, std::less<>> stored_as;
  for (const auto& [name, tensor] : from.manifest().tensors) {
    const bool is_weight = name.starts_with(kParam);
    if (what == Export::kWeights && !is_weight) continue;
    const std::string own = what == Export::kWeights ? name.substr(kParam.size()) : name;
    specs.push_back({.name = own, .dtype = tensor.dtype, .shape = tensor.shape});
    stored_as[own] = name;
  }
  SafetensorsWriter writer(to, make_safetensors_header(std::move(specs), Metadata{{"format", "pt"}}));
  for (const std::uint32_t at : writer.header().by_offset) {
    const std::string& name = writer.header().tensors[at].name;
    const StoredTensor& tensor = from.tensor(stored_as.at(name));
    stream(reading(from),
           {.name = &stored_as.at(name),
            .tensor = &tensor,
            .begin = 0,
            .end = static_cast<std::int64_t>(tensor.bytes() / tensor.element_bytes())},
           [&](std::span<const std::byte> bytes) { writer.write(name, bytes); });
  }
  writer.finish();
  return static_cast<std::int64_t>(stored_as.size());
}

}  // namespace trireme::formats
