// What the tests of file formats share: folders that vanish, files by hand, and the fixtures made with the reference.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/errors.h"
#include "tests/files.h"
#include "trireme/formats/safetensors.h"

namespace trireme::formats {

namespace fs = std::filesystem;

inline fs::path fixtures() { return TRIREME_FIXTURES; }

/// Name -> content of every file in a folder.
inline std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    files[entry.path().filename().string()] = read_all(entry.path());
  return files;
}

inline std::span<const std::byte> as_bytes(std::string_view text) { return std::as_bytes(std::span(text)); }
inline std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A safetensors file around a header, whatever that is.
inline std::string file_with(std::string_view header, std::string_view data = "") {
  std::string out(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(out.data(), &length, 8);
  return out.append(header).append(data);
}

/// What scripts/make-fixtures/checkpoints puts into a tensor.
inline std::string pattern(const std::string& name, std::size_t bytes) {
  // Python counts characters, not bytes.
  const auto characters = std::count_if(name.begin(), name.end(), [](char c) { return (c & 0xC0) != 0x80; });
  std::string out(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<char>((static_cast<std::size_t>(characters) * 31 + i) % 251);
  return out;
}

}  // namespace trireme::formats
