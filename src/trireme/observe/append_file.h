// observe/append_file.h -- a file that grows by whole pieces, one write() each, for what is written while a run lives.
//
// A process that is killed leaves at most its last piece cut; a piece that the disk has no room for is taken back. The
// opposite of base/new_file.h, whose files appear whole at the end.
// Depends on: base.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace trireme::observe {

class AppendFile {
 public:
  enum class Start : bool { kAppend, kNew };
  /// kNew: IoError when the file is there already. kAppend: made when it is not.
  explicit AppendFile(std::filesystem::path path, Start start = Start::kAppend);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// IoError that says so when the disk is full; the file then ends where it did before.
  void append(std::string_view bytes);
  /// The same for what must not end a run: while the disk is full, bytes are kept in memory, and go before the next
  /// ones. IoError when more than kMostKept are.
  void append_or_keep(std::string_view bytes);
  static constexpr std::size_t kMostKept = std::size_t{64} << 20;

 private:
  /// 0, or why not; the file then ends where it did before.
  int try_append(std::string_view bytes) noexcept;

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::string kept_;
};

}  // namespace trireme::observe
