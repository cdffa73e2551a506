// base/new_file.h -- a file that appears whole or not at all.
//
//   NewFile file("model.safetensors");
//   file.reserve(bytes);
//   file.write_at(0, header);
//   file.publish();
//
// The bytes go to a temporary name in the same folder. publish() brings them to the disk, then renames: whoever opens
// the name sees the old file or the whole new one, after a crash too. Without publish() the destructor removes what was
// written; after a crash a file that ends in ".tmp" is left, which nothing reads.
// Depends on: error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace trireme {

class NewFile {
 public:
  explicit NewFile(std::filesystem::path path);
  ~NewFile();
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// Asks the file system for the space now, so that a full disk is noticed before hours of writing.
  void reserve(std::uint64_t bytes);
  void write_at(std::uint64_t position, std::span<const std::byte> bytes);
  void publish();

 private:
  [[noreturn]] void fail(std::string_view what) const;

  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
};

/// A small file, by way of a NewFile.
void write_text_file(const std::filesystem::path& path, std::string_view text);

/// Brings the names in a folder to the disk: a file or folder that was renamed into it stays there after a crash.
void sync_folder(const std::filesystem::path& folder);

}  // namespace trireme
