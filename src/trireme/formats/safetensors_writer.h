// formats/safetensors_writer.h -- safetensors files out, byte for byte as the reference implementation writes them.
//
// First the header as a value, from names, types and shapes alone; then the tensors one at a time, so that no more than
// one of them needs to be in memory.
//
//   SafetensorsWriter writer("model.safetensors", make_safetensors_header(specs, Metadata{{"format", "pt"}}));
//   for (const auto& spec : specs) writer.write(spec.name, bytes_of_tensor(spec));
//   writer.finish();
// Depends on: base, formats/safetensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "trireme/base/new_file.h"
#include "trireme/formats/safetensors.h"

namespace trireme::formats {

/// Tensors by alignment, largest first, then by name; metadata in the order given (the reference has it in no fixed
/// order); spaces up to a multiple of 8. ConfigError for names that are there twice or reserved or no UTF-8, shapes
/// that cannot be stored, and a header that no reader would take.
SafetensorsHeader make_safetensors_header(std::vector<TensorSpec> specs, std::optional<Metadata> metadata);

/// A file that appears under its name with finish(), complete and on the disk, or not at all.
class SafetensorsWriter {
 public:
  /// `header` made for this file, or taken from another one to write the same file again.
  SafetensorsWriter(std::filesystem::path path, SafetensorsHeader header);

  const SafetensorsHeader& header() const { return header_; }
  /// The next bytes of a tensor: all of them, or a part. Tensors may come in any order, also interleaved.
  void write(std::string_view name, std::span<const std::byte> bytes);
  /// Whether every tensor has all its bytes.
  bool complete() const { return missing_bytes_ == 0; }
  /// InternalError naming a tensor when some bytes were not written.
  void finish();

 private:
  SafetensorsHeader header_;
  NewFile file_;
  std::vector<std::uint64_t> written_;  // [tensor]: bytes so far
  std::uint64_t missing_bytes_;
};

}  // namespace trireme::formats
