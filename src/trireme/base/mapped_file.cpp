#include "trireme/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "trireme/base/error.h"

namespace trireme {
namespace {

std::uint64_t size_of(int descriptor, const std::filesystem::path& path) {
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0)
    throw IoError(fmt::format("{}: cannot be looked at: {}", path.string(), std::strerror(errno)));
  if (!S_ISREG(status.st_mode))
    throw IoError(fmt::format("{}: is no regular file", path.string()),
                  "name the file itself, no folder, pipe or device");
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  // Without O_NONBLOCK the opening of a pipe that nobody writes to would wait for ever.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) throw IoError(fmt::format("{}: cannot be opened: {}", path_.string(), std::strerror(errno)));
  try {
    const std::uint64_t size = size_of(descriptor_, path_);
    if (size == 0) return;  // mmap refuses a length of 0
    void* memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor_, 0);
    if (memory == MAP_FAILED)
      throw IoError(fmt::format("{}: {} bytes cannot be mapped: {}", path_.string(), size, std::strerror(errno)));
    bytes_ = {static_cast<const std::byte*>(memory), size};
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  if (descriptor_ >= 0) ::close(descriptor_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void MappedFile::forget(std::span<const std::byte> part) const {
  // Whole pages: what is forgotten beside the part is read again when it is looked at.
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(part.data()) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(part.data() + part.size());
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void MappedFile::check_size() const {
  const std::uint64_t size = size_of(descriptor_, path_);
  if (size != bytes_.size())
    throw IoError(
        fmt::format("{}: had {} bytes when it was opened and has {} now", path_.string(), bytes_.size(), size),
        "something writes to it in place; wait for that to end and open it again");
}

std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const MappedFile file(path);
  if (file.size() > max_bytes)
    throw IoError(fmt::format("{}: has {} bytes, more than the {} that are allowed for it", path.string(), file.size(),
                              max_bytes));
  return std::string(file.text());
}

}  // namespace trireme
