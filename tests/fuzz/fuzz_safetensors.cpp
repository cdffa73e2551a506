// Safetensors headers: any bytes are a file that is read or refused; what is read can be made and read again.
#include <algorithm>
#include <cstring>
#include <string>

#include "tests/fuzz/fuzz.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/safetensors_writer.h"

namespace trireme::formats {
namespace {

void check_file(std::string_view file) {
  SafetensorsHeader header;
  try {
    header = parse_safetensors(std::as_bytes(std::span(file)), "f");
  } catch (const FormatError& error) {
    fuzz::require(error.message().find("byte ") != std::string::npos, "an error names its byte");
    return;
  }
  fuzz::require(file.substr(8, header.text.size()) == header.text, "the header's bytes are kept");
  fuzz::require(header.file_bytes() == file.size(), "the tensors fill the file");
  std::uint64_t covered = 0;
  for (const TensorInfo& tensor : header.tensors) {
    fuzz::require(header.find(tensor.name) == &tensor, "every tensor is found");
    fuzz::require(bytes_of(tensor) == tensor.bytes(), "a range holds its shape");
    covered += tensor.bytes();
  }
  fuzz::require(covered == header.data_bytes(), "ranges cover the data once");
  if (header.find("__metadata__") != nullptr) fuzz::require(false, "__metadata__ is no tensor");

  const auto made = make_safetensors_header({header.tensors.begin(), header.tensors.end()}, header.metadata);
  std::string again(8, '\0');
  const std::uint64_t length = made.text.size();
  std::memcpy(again.data(), &length, 8);
  again += made.text;
  again += file.substr(header.data_begin());
  const auto read = parse_safetensors(std::as_bytes(std::span(again)), "again");
  fuzz::require(read.tensors == made.tensors && read.metadata == header.metadata, "what is made is read back");
}

/// The header alone, with a length that is right and as much data as its offsets ask for: most changes would otherwise
/// end at the first check.
std::string fitted(std::string_view input) {
  const std::size_t end = input.rfind('}');
  const std::string header(input.substr(8, end == input.npos ? end : std::max<std::size_t>(end + 1, 8) - 8));
  constexpr std::string_view kOffsets = "\"data_offsets\":[";
  std::uint64_t data_bytes = 0;
  for (std::size_t at = 0; (at = header.find(kOffsets, at)) != header.npos;) {
    at = std::min(header.find(',', at), header.size() - 1);
    const std::uint64_t offset = std::strtoull(header.c_str() + at + 1, nullptr, 10);
    if (offset < 1 << 16) data_bytes = std::max(data_bytes, offset);
  }
  std::string file(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, 'd');
}

}  // namespace
}  // namespace trireme::formats

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  trireme::formats::check_file(input);
  if (size > 8) trireme::formats::check_file(trireme::formats::fitted(input));
  return 0;
}
