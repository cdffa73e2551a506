// dashboard/line_tail.h -- the new lines of a file that a run appends to.
//
// A run that resumes cuts its files back by putting shorter ones in their place, so a reader must notice another file
// under the same name, and one that has become shorter. A line without its end is left for the next time.
// Depends on: std.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::dashboard {

class LineTail {
 public:
  explicit LineTail(std::filesystem::path file) : file_(std::move(file)) {}

  enum class Change : std::uint8_t { kNone, kGrew, kRestarted };
  /// Gives every new whole line to `take`, without its end. `restart` is called first where what was read before is no
  /// longer part of the file.
  Change read(const std::function<void()>& restart, const std::function<void(std::string_view)>& take);
  /// All lines that have been read so far once more, for who wants to know more of them.
  void again(const std::function<void(std::string_view)>& take) const;

  const std::filesystem::path& file() const { return file_; }
  bool exists() const { return exists_; }
  std::uint64_t offset() const { return offset_; }
  /// When the file was last written, in seconds since 1970.
  double modified() const { return modified_; }

 private:
  bool same_file(int descriptor) const;

  std::filesystem::path file_;
  bool exists_ = false;
  ino_t inode_ = 0;
  std::uint64_t size_ = 0;    // when it was last looked at
  std::uint64_t offset_ = 0;  // behind the last whole line
  double modified_ = 0;
  std::string mark_;  // the last bytes before `offset_`: an inode may be used again
};

/// The whole lines among the last `bytes` of a file; none where it is not there.
std::vector<std::string> last_lines(const std::filesystem::path& file, std::uint64_t bytes);

}  // namespace trireme::dashboard
