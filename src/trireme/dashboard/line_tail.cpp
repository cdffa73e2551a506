#include "trireme/dashboard/line_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace trireme::dashboard {
namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20, kLongestLine = std::size_t{16} << 20, kMark = 48;

class TailDescriptor {
 public:
  explicit TailDescriptor(const std::filesystem::path& file) : value_(::open(file.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~TailDescriptor() {
    if (value_ >= 0) ::close(value_);
  }
  TailDescriptor(const TailDescriptor&) = delete;
  TailDescriptor& operator=(const TailDescriptor&) = delete;
  int value() const { return value_; }

 private:
  int value_;
};

/// Whole lines from `begin` to `end`; gives where the last of them ended. A line that is longer than any of ours is
/// passed over.
std::uint64_t lines_between(int descriptor, std::uint64_t begin, std::uint64_t end, std::string& mark,
                            const std::function<void(std::string_view)>& take) {
  std::vector<char> buffer;
  std::size_t kept = 0;         // bytes of an unfinished line at the front of the buffer
  std::uint64_t whole = begin;  // behind the last whole line
  bool skipping = false;
  for (std::uint64_t at = begin; at < end;) {
    const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, end - at));
    buffer.resize(std::max(buffer.size(), kept + wanted));
    const ssize_t got = ::pread(descriptor, buffer.data() + kept, wanted, static_cast<off_t>(at));
    if (got <= 0) break;
    at += static_cast<std::uint64_t>(got);
    const char* from = buffer.data();
    const char* const stop = buffer.data() + kept + got;
    const char* search = buffer.data() + kept;
    while (const void* found = std::memchr(search, '\n', static_cast<std::size_t>(stop - search))) {
      const char* line_end = static_cast<const char*>(found);
      if (!skipping) take({from, static_cast<std::size_t>(line_end - from)});
      skipping = false;
      from = search = line_end + 1;
      whole = at - static_cast<std::uint64_t>(stop - from);
    }
    if (from != buffer.data()) {
      const auto before = std::min<std::size_t>(static_cast<std::size_t>(from - buffer.data()), kMark);
      mark.assign(from - before, before);
    }
    kept = static_cast<std::size_t>(stop - from);
    if (kept > kLongestLine) {
      skipping = true;
      kept = 0;
    }
    std::memmove(buffer.data(), from, kept);
  }
  return whole;
}

}  // namespace

bool LineTail::same_file(int descriptor) const {
  std::string now(mark_.size(), '\0');
  const ssize_t got = ::pread(descriptor, now.data(), now.size(), static_cast<off_t>(offset_ - mark_.size()));
  return got == static_cast<ssize_t>(mark_.size()) && now == mark_;
}

LineTail::Change LineTail::read(const std::function<void()>& restart,
                                const std::function<void(std::string_view)>& take) {
  struct stat status {};
  if (::stat(file_.c_str(), &status) != 0) {
    if (!exists_) return Change::kNone;
    *this = LineTail(file_);
    restart();
    return Change::kRestarted;
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  modified_ = static_cast<double>(status.st_mtim.tv_sec) + 1e-9 * static_cast<double>(status.st_mtim.tv_nsec);
  if (exists_ && status.st_ino == inode_ && size == size_) return Change::kNone;
  const TailDescriptor descriptor(file_);
  if (descriptor.value() < 0) return Change::kNone;
  // Of the file that was opened: another may have taken its place since.
  if (::fstat(descriptor.value(), &status) != 0) return Change::kNone;
  const bool same = !exists_ || (status.st_ino == inode_ && static_cast<std::uint64_t>(status.st_size) >= offset_ &&
                                 same_file(descriptor.value()));
  exists_ = true;
  inode_ = status.st_ino;
  size_ = static_cast<std::uint64_t>(status.st_size);
  if (!same) {
    offset_ = 0;
    mark_.clear();
    restart();
  }
  const std::uint64_t before = offset_;
  offset_ = lines_between(descriptor.value(), offset_, size_, mark_, take);
  return !same ? Change::kRestarted : offset_ > before ? Change::kGrew : Change::kNone;
}

void LineTail::again(const std::function<void(std::string_view)>& take) const {
  const TailDescriptor descriptor(file_);
  std::string mark;
  if (descriptor.value() >= 0) lines_between(descriptor.value(), 0, offset_, mark, take);
}

std::vector<std::string> last_lines(const std::filesystem::path& file, std::uint64_t bytes) {
  std::vector<std::string> lines;
  const TailDescriptor descriptor(file);
  struct stat status {};
  if (descriptor.value() < 0 || ::fstat(descriptor.value(), &status) != 0) return lines;
  const auto size = static_cast<std::uint64_t>(status.st_size);
  std::string mark;
  lines_between(descriptor.value(), size > bytes ? size - bytes : 0, size, mark,
                [&](std::string_view line) { lines.emplace_back(line); });
  if (size > bytes && !lines.empty()) lines.erase(lines.begin());  // its beginning was left out
  return lines;
}

}  // namespace trireme::dashboard
