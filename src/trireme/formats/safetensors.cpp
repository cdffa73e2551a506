#include "trireme/formats/safetensors.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <tuple>

#include "trireme/base/text.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/json_reader.h"

namespace trireme::formats {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian, and bytes are handed out as they are");

constexpr std::string_view kMetadataKey = "__metadata__";

/// Reads one header; remembers where each tensor was said, for messages about tensors that do not fit each other.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, std::string_view source, std::uint64_t data_bytes)
      : json_(text, source, 8), data_bytes_(data_bytes) {
    header_.text = text;
  }

  SafetensorsHeader read() {
    bool has_metadata = false;
    json_.object([&](std::string key) {
      if (key != kMetadataKey) return read_tensor(std::move(key));
      if (std::exchange(has_metadata, true)) json_.fail(json_.key_position(), "__metadata__ is there twice");
      read_metadata();
    });
    json_.end();
    sort_tensors(header_);
    check_names();
    check_coverage();
    return std::move(header_);
  }

 private:
  void read_metadata() {
    if (json_.peek() == JsonReader::Kind::kNull) return json_.null();
    header_.metadata.emplace();
    json_.about("", "");
    json_.object([&](std::string key) {
      // Twice the same key is kept: the reference writer cannot make it, its reader takes it, and nothing hangs on it.
      if (json_.peek() != JsonReader::Kind::kString)
        json_.fail(json_.value_position(), fmt::format("the value of {} in __metadata__ must be a text", shown(key)));
      header_.metadata->emplace_back(std::move(key), json_.string());
    });
  }

  void read_tensor(std::string name) {
    const std::uint64_t at = json_.key_position();
    TensorInfo& tensor = header_.tensors.emplace_back();
    tensor.name = std::move(name);
    json_.about("tensor", tensor.name);
    bool has_dtype = false, has_shape = false, has_offsets = false;
    json_.object([&](const std::string& key) {
      const auto first = [&](bool& has) {
        if (std::exchange(has, true)) json_.fail(json_.key_position(), fmt::format("{} is there twice", shown(key)));
      };
      if (key == "dtype") {
        first(has_dtype);
        read_dtype(tensor);
      } else if (key == "shape") {
        first(has_shape);
        read_shape(tensor);
      } else if (key == "data_offsets") {
        first(has_offsets);
        read_offsets(tensor);
      } else {
        json_.skip();
      }
    });
    if (!has_dtype) json_.fail(at, "has no dtype");
    if (!has_shape) json_.fail(at, "has no shape");
    if (!has_offsets) json_.fail(at, "has no data_offsets");
    check_size(tensor, at);
    said_at_.push_back(at);
    json_.about("", "");
  }

  void read_dtype(TensorInfo& tensor) {
    const std::uint64_t at = json_.value_position();
    const std::string name = json_.string();
    const auto dtype = parse_dtype(name);
    if (!dtype) {
      std::vector<std::string> known;
      for (const auto& entry : dtypes()) known.emplace_back(entry.name);
      json_.fail(at, fmt::format("the dtype {} is none of {}", shown(name), listed(known)));
    }
    tensor.dtype = *dtype;
  }

  void read_shape(TensorInfo& tensor) {
    const std::uint64_t at = json_.value_position();
    json_.array([&] {
      if (tensor.shape.size() == kMaxDimensions)
        json_.fail(at, fmt::format("the shape has more than {} dimensions", kMaxDimensions));
      tensor.shape.push_back(json_.whole_number());
    });
  }

  void read_offsets(TensorInfo& tensor) {
    const std::uint64_t at = json_.value_position();
    std::uint64_t offsets[2] = {};
    std::size_t count = 0;
    json_.array([&] {
      if (count == 2) json_.fail(at, "data_offsets must be two numbers, but are more");
      offsets[count++] = static_cast<std::uint64_t>(json_.whole_number());
    });
    if (count != 2) json_.fail(at, fmt::format("data_offsets must be two numbers, but are {}", count));
    if (offsets[0] > offsets[1])
      json_.fail(at, fmt::format("data_offsets end at {}, before they begin at {}", offsets[1], offsets[0]));
    if (offsets[1] > data_bytes_)
      json_.fail(at, fmt::format("data_offsets end at {}, but the file has {} bytes of data", offsets[1], data_bytes_),
                 "the file is cut short or the header wrong; fetch it again");
    tensor.begin = offsets[0];
    tensor.end = offsets[1];
  }

  void check_size(const TensorInfo& tensor, std::uint64_t at) {
    const auto bytes = bytes_of(tensor);
    if (!bytes)
      json_.fail(at, fmt::format("{} has more bytes than can be counted, or ends within a byte", to_text(tensor)));
    if (*bytes != tensor.bytes())
      json_.fail(at, fmt::format("{} takes {} bytes, but data_offsets [{}, {}] hold {}", to_text(tensor), *bytes,
                                 tensor.begin, tensor.end, tensor.bytes()));
  }

  void check_names() {
    for (std::size_t i = 1; i < header_.by_name.size(); ++i) {
      const auto [a, b] = std::minmax(header_.by_name[i - 1], header_.by_name[i]);
      if (header_.tensors[a].name != header_.tensors[b].name) continue;
      json_.about("tensor", header_.tensors[b].name);
      json_.fail(said_at_[b], fmt::format("is there twice; the first one is at byte {}", said_at_[a]));
    }
  }

  void check_coverage() {
    std::uint64_t covered = 0;
    const TensorInfo* last = nullptr;
    for (const std::uint32_t i : header_.by_offset) {
      const TensorInfo& tensor = header_.tensors[i];
      json_.about("tensor", tensor.name);
      if (tensor.begin > covered)
        json_.fail(said_at_[i], fmt::format("begins at {} of the data; the bytes from {} on belong to no tensor",
                                            tensor.begin, covered));
      if (tensor.begin < covered)
        json_.fail(said_at_[i], fmt::format("begins at {} of the data, within tensor {}, which ends at {}",
                                            tensor.begin, shown(last->name), covered));
      covered = tensor.end;
      last = &tensor;
    }
    json_.about("", "");
    if (covered != data_bytes_)
      json_.fail(header_.data_begin() + covered,
                 fmt::format("the tensors end here, but {} more bytes follow", data_bytes_ - covered));
  }

  JsonReader json_;
  std::uint64_t data_bytes_;
  SafetensorsHeader header_;
  std::vector<std::uint64_t> said_at_;  // [tensor]: the byte of its name
};

}  // namespace

const TensorInfo* SafetensorsHeader::find(std::string_view name) const {
  const auto name_at = [&](std::uint32_t i) -> std::string_view { return tensors[i].name; };
  const auto found = std::ranges::lower_bound(by_name, name, {}, name_at);
  return found != by_name.end() && name_at(*found) == name ? &tensors[*found] : nullptr;
}

void sort_tensors(SafetensorsHeader& header) {
  const auto& tensors = header.tensors;
  header.by_name.resize(tensors.size());
  std::iota(header.by_name.begin(), header.by_name.end(), 0U);
  header.by_offset = header.by_name;
  std::ranges::sort(header.by_name, {}, [&](std::uint32_t i) -> std::string_view { return tensors[i].name; });
  // Tensors without elements come before the one that begins at the same byte.
  std::ranges::sort(header.by_offset, {},
                    [&](std::uint32_t i) { return std::tuple(tensors[i].begin, tensors[i].end, i); });
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> bytes, std::string_view source) {
  const auto fail = [&](std::string_view what, std::string hint = {}) {
    throw FormatError(fmt::format("{}: {}", source, what), std::move(hint));
  };
  if (bytes.size() < 8)
    fail(fmt::format("has {} bytes; a safetensors file begins with 8 bytes of header length (byte 0)", bytes.size()),
         "the file is cut short or another format");
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i)
    length = length << 8 | std::to_integer<std::uint64_t>(bytes[static_cast<std::size_t>(i)]);
  if (length > kMaxHeaderBytes)
    fail(fmt::format("the header would have {} bytes, more than the {} that are allowed (byte 0)", length,
                     kMaxHeaderBytes),
         "the file is probably no safetensors file");
  if (length > bytes.size() - 8)
    fail(fmt::format("the header should end at byte {}, but the file does at {} (byte 0)", length + 8, bytes.size()),
         "the file is cut short; fetch it again");
  const auto header = bytes.subspan(8, length);
  return HeaderReader({reinterpret_cast<const char*>(header.data()), header.size()}, source, bytes.size() - 8 - length)
      .read();
}

std::optional<std::uint64_t> bytes_of(const TensorSpec& spec) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  std::uint64_t bits = static_cast<std::uint64_t>(bits_of(spec.dtype));
  bool empty = false;
  for (const std::int64_t size : spec.shape) {
    // A size of 0 makes the tensor empty, but not the others harmless: strides are products of them.
    if (size < 0) return std::nullopt;
    empty |= size == 0;
    if (size > 0 && __builtin_mul_overflow(bits, static_cast<std::uint64_t>(size), &bits)) return std::nullopt;
    if (bits > kMost) return std::nullopt;
  }
  if (empty) return 0;
  return bits % 8 == 0 ? std::optional(bits / 8) : std::nullopt;
}

std::string to_text(const TensorSpec& spec) {
  std::string out = fmt::format("{} [", name_of(spec.dtype));
  for (std::size_t i = 0; i < spec.shape.size(); ++i)
    fmt::format_to(std::back_inserter(out), "{}{}", i == 0 ? "" : ", ", spec.shape[i]);
  return out + "]";
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path)
    : file_(std::move(path)), header_(parse_safetensors(file_.bytes(), file_.path().string())) {}

std::span<const std::byte> SafetensorsFile::bytes(const TensorInfo& tensor) const {
  TRIREME_CHECK(tensor.begin <= tensor.end && tensor.end <= header_.data_bytes(), "{} is no tensor of {}",
                shown(tensor.name), path().string());
  return file_.bytes().subspan(header_.data_begin() + tensor.begin, tensor.bytes());
}

const TensorInfo& SafetensorsFile::tensor(std::string_view name) const {
  if (const TensorInfo* found = header_.find(name)) return *found;
  std::vector<std::string> names;
  for (const TensorInfo& tensor : header_.tensors) names.push_back(tensor.name);
  throw FormatError(fmt::format("{}: has no tensor {}{}", path().string(), shown(name), did_you_mean(name, names)));
}

}  // namespace trireme::formats
