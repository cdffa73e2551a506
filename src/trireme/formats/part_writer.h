// formats/part_writer.h -- a large file out of pieces of memory, as fast as the disk takes it, with checksums.
//
// Several threads fill, sum and write chunks side by side, past the page cache where the file system allows: the cache
// would cost a second copy, and the data is not read again. The file is on the disk when this returns.
// Depends on: base, formats/checkpoint_manifest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "trireme/formats/checkpoint_manifest.h"

namespace trireme::formats {

/// The next bytes of the file.
struct PieceOfMemory {
  const std::byte* from = nullptr;
  std::uint64_t bytes = 0;
};

/// Adds a piece at the end; as part of the last one where it follows it in memory.
void append_piece(std::vector<PieceOfMemory>& pieces, const PieceOfMemory& piece);

struct PartOptions {
  int threads = 2;
  bool direct = true;  ///< past the page cache, where possible
  /// Called by any of the threads with the bytes of a block that it has just summed and so has in its cache.
  std::function<void(std::uint64_t begin, std::uint64_t end)> summed = {};
  /// Called by any of the threads with the bytes of a chunk before they are written: to inject faults, by throwing.
  std::function<void(std::uint64_t begin, std::uint64_t end)> before_write = {};
};

/// Writes and syncs `path`; gives its checksums by blocks of kCheckedBlock. IoError when that fails; what was written
/// then stays for whoever removes the folder.
std::vector<Checked> write_part(const std::filesystem::path& path, std::span<const PieceOfMemory> pieces,
                                const PartOptions& options = {});

/// Memory that files can be written from without a copy: starts at a page.
class AlignedMemory {
 public:
  AlignedMemory() = default;
  explicit AlignedMemory(std::size_t bytes);
  ~AlignedMemory();
  AlignedMemory(AlignedMemory&& other) noexcept;
  AlignedMemory& operator=(AlignedMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace trireme::formats
