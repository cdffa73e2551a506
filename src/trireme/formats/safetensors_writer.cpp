#include "trireme/formats/safetensors_writer.h"

#include <algorithm>
#include <tuple>

#include "trireme/base/text.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/json_text.h"
#include "trireme/formats/utf8.h"

namespace trireme::formats {
namespace {

void require_text(std::string_view text, std::string_view what) {
  if (!is_utf8(text)) throw ConfigError(fmt::format("{} {} is no UTF-8 text", what, shown(text)));
}

void append_metadata(std::string& out, const Metadata& metadata) {
  out += "\"__metadata__\":{";
  for (std::size_t i = 0; i < metadata.size(); ++i) {
    const auto& [key, value] = metadata[i];
    require_text(key, "the metadata key");
    require_text(value, "the metadata value");
    out += i == 0 ? "" : ",";
    out += json_string(key);
    out += ':';
    out += json_string(value);
  }
  out += '}';
}

void append_tensor(std::string& out, const TensorInfo& tensor) {
  fmt::format_to(std::back_inserter(out), "{}:{{\"dtype\":\"{}\",\"shape\":[", json_string(tensor.name),
                 name_of(tensor.dtype));
  for (std::size_t i = 0; i < tensor.shape.size(); ++i)
    fmt::format_to(std::back_inserter(out), "{}{}", i == 0 ? "" : ",", tensor.shape[i]);
  fmt::format_to(std::back_inserter(out), "],\"data_offsets\":[{},{}]}}", tensor.begin, tensor.end);
}

/// Gives every tensor its place, one after the other.
std::vector<TensorInfo> placed(std::vector<TensorSpec> specs) {
  std::ranges::sort(specs, [](const TensorSpec& a, const TensorSpec& b) {
    return std::tuple(b.dtype, std::string_view(a.name)) < std::tuple(a.dtype, std::string_view(b.name));
  });
  std::vector<TensorInfo> tensors;
  std::uint64_t offset = 0;
  for (TensorSpec& spec : specs) {
    require_text(spec.name, "the tensor name");
    if (spec.name == "__metadata__")
      throw ConfigError("a tensor cannot be called __metadata__: the format has that for itself");
    const auto bytes = bytes_of(spec);
    const bool fits = bytes && spec.shape.size() <= kMaxDimensions && *bytes <= (std::uint64_t{1} << 62) - offset;
    if (!fits)
      throw ConfigError(
          fmt::format("tensor {}: {} cannot be stored: more than {} dimensions, more bytes than can be "
                      "counted, or an end within a byte",
                      shown(spec.name), to_text(spec), kMaxDimensions));
    TensorInfo& tensor = tensors.emplace_back();
    static_cast<TensorSpec&>(tensor) = std::move(spec);
    tensor.begin = offset;
    tensor.end = offset += *bytes;
  }
  return tensors;
}

}  // namespace

SafetensorsHeader make_safetensors_header(std::vector<TensorSpec> specs, std::optional<Metadata> metadata) {
  SafetensorsHeader header;
  header.tensors = placed(std::move(specs));
  header.metadata = std::move(metadata);
  sort_tensors(header);
  for (std::size_t i = 1; i < header.by_name.size(); ++i) {
    const std::string& name = header.tensors[header.by_name[i]].name;
    if (name == header.tensors[header.by_name[i - 1]].name)
      throw ConfigError(fmt::format("tensor {} is to be written twice", shown(name)));
  }
  std::string& text = header.text;
  text = "{";
  if (header.metadata) append_metadata(text, *header.metadata);
  for (const TensorInfo& tensor : header.tensors) {
    if (text.size() > 1) text += ',';
    append_tensor(text, tensor);
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeaderBytes)
    throw ConfigError(fmt::format("the header of {} would have {} bytes; readers take {}",
                                  counted(header.tensors.size(), "tensor"), text.size(), kMaxHeaderBytes),
                      "split the tensors over several files");
  return header;
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, SafetensorsHeader header)
    : header_(std::move(header)),
      file_(std::move(path)),
      written_(header_.tensors.size()),
      missing_bytes_(header_.data_bytes()) {
  file_.reserve(header_.file_bytes());
  std::string start(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) start[i] = static_cast<char>(header_.text.size() >> (8 * i) & 0xFF);
  start += header_.text;
  file_.write_at(0, std::as_bytes(std::span(start)));
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  const TensorInfo* tensor = header_.find(name);
  TRIREME_CHECK(tensor != nullptr, "{} has no place for a tensor {}", file_.path().string(), shown(name));
  std::uint64_t& written = written_[static_cast<std::size_t>(tensor - header_.tensors.data())];
  TRIREME_CHECK(bytes.size() <= tensor->bytes() - written,
                "{} more bytes for tensor {}, which has {} of its {} already", bytes.size(), shown(name), written,
                tensor->bytes());
  file_.write_at(header_.data_begin() + tensor->begin + written, bytes);
  written += bytes.size();
  missing_bytes_ -= bytes.size();
}

void SafetensorsWriter::finish() {
  for (std::size_t i = 0; i < written_.size(); ++i) {
    const TensorInfo& tensor = header_.tensors[i];
    TRIREME_CHECK(written_[i] == tensor.bytes(), "{}: tensor {} has {} of its {} bytes", file_.path().string(),
                  shown(tensor.name), written_[i], tensor.bytes());
  }
  file_.publish();
}

}  // namespace trireme::formats
