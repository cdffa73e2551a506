#include "trireme/observe/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/log.h"

namespace trireme::observe {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, std::string_view what, int why) {
  if (why == ENOSPC || why == EDQUOT) {
    throw IoError(fmt::format("{}: {}: {} ({})", path.string(), what, "the disk is full", std::strerror(why)),
                  "free some space and resume the run, or name a run folder on another disk");
  }
  const char* hint = why == ENOENT                   ? "name a folder that exists"
                     : why == EACCES || why == EROFS ? "name a run folder that can be written to"
                                                     : "";
  throw IoError(fmt::format("{}: {}: {}", path.string(), what, std::strerror(why)), hint);
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path path, Start start) : path_(std::move(path)) {
  const int how = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (start == Start::kNew ? O_EXCL : 0);
  descriptor_ = ::open(path_.c_str(), how, 0666);
  if (descriptor_ < 0) fail(path_, "cannot be opened", errno);
}

AppendFile::~AppendFile() {
  if (descriptor_ < 0) return;
  if (!kept_.empty() && try_append(kept_) != 0) {
    log_warn("{}: the disk is full, and the last {} bytes are lost", path_.string(), kept_.size());
  }
  ::close(descriptor_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      kept_(std::exchange(other.kept_, {})) {}

int AppendFile::try_append(std::string_view bytes) noexcept {
  struct stat before {};
  const bool known = ::fstat(descriptor_, &before) == 0 && S_ISREG(before.st_mode);
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int why = errno;
      // What went in before the disk was full would run into the next piece. If this fails too, the reader still
      // takes a cut last line for what it is.
      if (known && ::ftruncate(descriptor_, before.st_size) != 0) errno = why;
      return why;
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

void AppendFile::append(std::string_view bytes) {
  if (const int why = try_append(bytes); why != 0) fail(path_, "cannot be written", why);
}

void AppendFile::append_or_keep(std::string_view bytes) {
  const bool kept_some = !kept_.empty();
  if (kept_some) kept_ += bytes;
  const int why = try_append(kept_some ? std::string_view(kept_) : bytes);
  if (why == 0) {
    kept_.clear();
    return;
  }
  if (!kept_some) kept_ = bytes;
  if ((why != ENOSPC && why != EDQUOT) || kept_.size() > kMostKept) fail(path_, "cannot be written", why);
  if (!kept_some) log_warn("{}: the disk is full; lines are kept until there is room", path_.string());
}

}  // namespace trireme::observe
