// base/mapped_file.h -- a file's bytes as memory, read only when they are looked at.
//
// The size is taken once, at open, and everything is checked against it. A file that another process cuts short while
// it is mapped cannot be guarded against: the kernel answers a look beyond the new end with SIGBUS. Files that are
// replaced by renaming (base/new_file.h) are safe, as the old one lives on while it is mapped; who reads files that are
// written in place calls check_size() before a long read and gets an error instead, unless it happens in between.
// Depends on: error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace trireme {

class MappedFile {
 public:
  /// IoError with the path when it cannot be opened or is no regular file.
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return bytes_.size(); }
  /// Valid while this object, or what it was moved to, lives.
  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

  /// Lets go of the memory that a look at these bytes took; the next look reads them again.
  void forget(std::span<const std::byte> part) const;

  /// IoError when the file no longer has the size it was opened with.
  void check_size() const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;  // kept for check_size()
  std::span<const std::byte> bytes_;
};

/// A small text file, whole. IoError with the path when it cannot be read or has more than `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes);

}  // namespace trireme
