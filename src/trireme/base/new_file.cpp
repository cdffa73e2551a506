#include "trireme/base/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "trireme/base/error.h"

namespace trireme {

NewFile::NewFile(std::filesystem::path path) : path_(std::move(path)) {
  // Several writers of one name, in this process or in others, must not share a temporary file: the process is in the
  // name, and O_EXCL makes the number unique within it.
  for (int number = 0; descriptor_ < 0; ++number) {
    temporary_ = fmt::format("{}.{}-{}.tmp", path_.string(), ::getpid(), number);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST) fail("cannot be created");
  }
}

NewFile::~NewFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

void NewFile::fail(std::string_view what) const {
  const int why = errno;
  const char* hint = why == ENOSPC || why == EDQUOT  ? "free some space, or name a folder on another disk"
                     : why == ENOENT                 ? "name a folder that exists"
                     : why == EACCES || why == EROFS ? "name a folder that can be written to"
                                                     : "";
  throw IoError(fmt::format("{}: {}: {}", path_.string(), what, std::strerror(why)), hint);
}

void NewFile::reserve(std::uint64_t bytes) {
  if (bytes == 0) return;
  // Not posix_fallocate: where the file system cannot reserve, that writes into every block instead. Such file systems
  // report a full disk when it is reached.
  if (::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes)) == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return;
  fail(fmt::format("no room for {} bytes", bytes));
}

void NewFile::write_at(std::uint64_t position, std::span<const std::byte> bytes) {
  TRIREME_CHECK(descriptor_ >= 0, "{} is published already", path_.string());
  while (!bytes.empty()) {
    const std::size_t most = std::min<std::size_t>(bytes.size(), std::size_t{1} << 30);  // Linux moves at most 2 GiB
    const ssize_t written = ::pwrite(descriptor_, bytes.data(), most, static_cast<off_t>(position));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(fmt::format("{} bytes at byte {} cannot be written", bytes.size(), position));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    position += static_cast<std::uint64_t>(written);
  }
}

void NewFile::publish() {
  TRIREME_CHECK(descriptor_ >= 0, "{} is published already", path_.string());
  if (::fsync(descriptor_) != 0) fail("cannot be brought to the disk");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot be given its name");
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) fail("cannot be closed");
  sync_folder(path_.parent_path());
}

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  NewFile file(path);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.publish();
}

void sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path named = folder.empty() ? "." : folder;
  const int descriptor = ::open(named.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // Some network file systems cannot sync a folder and say EINVAL; their renames are in order by themselves.
  const bool failed = descriptor < 0 || (::fsync(descriptor) != 0 && errno != EINVAL);
  const int why = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (failed) throw IoError(fmt::format("{}: cannot be brought to the disk: {}", named.string(), std::strerror(why)));
}

}  // namespace trireme
