#include "trireme/formats/part_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::formats {
namespace {

constexpr std::uint64_t kChunk = 8 * kCheckedBlock;  // large enough that a disk does not notice where chunks end
constexpr std::uint64_t kPage = 4096;                // what writes past the page cache must be multiples of
constexpr std::uint64_t kDirectFrom = 4 * kCheckedBlock;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

class PartFile {
 public:
  PartFile(std::filesystem::path path, std::uint64_t bytes, bool direct) : path_(std::move(path)), bytes_(bytes) {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    direct_ = direct && bytes >= kDirectFrom;
    if (direct_) descriptor_ = ::open(path_.c_str(), kFlags | O_DIRECT, 0666);
    if (descriptor_ < 0) {
      direct_ = false;
      descriptor_ = ::open(path_.c_str(), kFlags, 0666);
    }
    if (descriptor_ < 0) fail("cannot be created");
    // A full disk shows here, before anything is written, where the file system can reserve.
    if (bytes > 0 && ::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes)) != 0 && errno != EOPNOTSUPP &&
        errno != ENOSYS) {
      const int why = errno;
      ::close(descriptor_);
      errno = why;
      fail(fmt::format("no room for {} bytes", bytes));
    }
  }
  ~PartFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  bool direct() const { return direct_; }
  /// `data` may be read up to a whole page.
  void write(std::uint64_t at, const std::byte* data, std::uint64_t bytes) {
    if (direct_) bytes = round_up(bytes, kPage);
    while (bytes > 0) {
      const ssize_t written = ::pwrite(descriptor_, data, bytes, static_cast<off_t>(at));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail(fmt::format("{} bytes at byte {} cannot be written", bytes, at));
      at += static_cast<std::uint64_t>(written);
      data += written;
      bytes -= static_cast<std::uint64_t>(written);
    }
  }
  void finish() {
    if (direct_ && bytes_ % kPage != 0 && ::ftruncate(descriptor_, static_cast<off_t>(bytes_)) != 0) {
      fail("cannot be cut to its size");
    }
    if (::fsync(descriptor_) != 0) fail("cannot be brought to the disk");
    const int descriptor = std::exchange(descriptor_, -1);
    if (::close(descriptor) != 0) fail("cannot be closed");
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    const int why = errno;
    throw IoError(fmt::format("{}: {}: {}", path_.string(), what, std::strerror(why)),
                  why == ENOSPC || why == EDQUOT || why == EFBIG ? "free some space, or keep fewer checkpoints" : "");
  }

  std::filesystem::path path_;
  std::uint64_t bytes_;
  int descriptor_ = -1;
  bool direct_ = false;
};

/// Where in the pieces a byte of the file is.
class Pieces {
 public:
  explicit Pieces(std::span<const PieceOfMemory> pieces) : pieces_(pieces) {
    begins_.reserve(pieces.size() + 1);
    begins_.push_back(0);
    for (const PieceOfMemory& piece : pieces) begins_.push_back(begins_.back() + piece.bytes);
  }
  std::uint64_t bytes() const { return begins_.back(); }

  /// The bytes [begin, end) where they are, if a file can be written from there; otherwise null.
  const std::byte* in_place(std::uint64_t begin, std::uint64_t end, bool aligned) const {
    const std::size_t i = piece_at(begin);
    if (end > begins_[i + 1]) return nullptr;
    const std::byte* from = pieces_[i].from + (begin - begins_[i]);
    return !aligned || (reinterpret_cast<std::uintptr_t>(from) % kPage == 0 && (end - begin) % kPage == 0) ? from
                                                                                                           : nullptr;
  }
  void copy(std::uint64_t begin, std::uint64_t end, std::byte* to) const {
    std::size_t i = piece_at(begin);
    for (std::uint64_t at = begin; at < end; ++i) {
      const std::uint64_t until = std::min(end, begins_[i + 1]);
      if (until > at) std::memcpy(to + (at - begin), pieces_[i].from + (at - begins_[i]), until - at);
      at = until;
    }
  }

 private:
  std::size_t piece_at(std::uint64_t begin) const {
    return static_cast<std::size_t>(std::ranges::upper_bound(begins_, begin) - begins_.begin()) - 1;
  }

  std::span<const PieceOfMemory> pieces_;
  std::vector<std::uint64_t> begins_;
};

}  // namespace

AlignedMemory::AlignedMemory(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  ::madvise(memory, bytes, MADV_HUGEPAGE);  // fewer faults when it is first filled; nothing lost where it is refused
  data_ = static_cast<std::byte*>(memory);
}

AlignedMemory::~AlignedMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

AlignedMemory::AlignedMemory(AlignedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

AlignedMemory& AlignedMemory::operator=(AlignedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void append_piece(std::vector<PieceOfMemory>& pieces, const PieceOfMemory& piece) {
  if (!pieces.empty() && pieces.back().from + pieces.back().bytes == piece.from) {
    pieces.back().bytes += piece.bytes;
  } else {
    pieces.push_back(piece);
  }
}

std::vector<Checked> write_part(const std::filesystem::path& path, std::span<const PieceOfMemory> pieces,
                                const PartOptions& options) {
  const Pieces source(pieces);
  const std::uint64_t bytes = source.bytes();
  PartFile file(path, bytes, options.direct);
  std::vector<Checked> checks;
  for (std::uint64_t begin = 0; begin < bytes; begin += kCheckedBlock) {
    checks.push_back({.begin = begin, .end = std::min(begin + kCheckedBlock, bytes), .sum = 0});
  }
  const std::uint64_t chunks = (bytes + kChunk - 1) / kChunk;
  std::atomic<std::uint64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    try {
      AlignedMemory buffer;
      for (std::uint64_t chunk; !failed.load(std::memory_order_relaxed) && (chunk = next.fetch_add(1)) < chunks;) {
        const std::uint64_t begin = chunk * kChunk, end = std::min(begin + kChunk, bytes);
        if (buffer.size() == 0) buffer = AlignedMemory(std::min(kChunk, round_up(bytes, kPage)));
        const std::byte* in_place = source.in_place(begin, end, file.direct());
        const std::byte* data = in_place != nullptr ? in_place : buffer.data();
        // All that is done with a block is done while it is in this core's cache.
        for (std::uint64_t block = begin / kCheckedBlock; block * kCheckedBlock < end; ++block) {
          Checked& check = checks[block];
          if (in_place == nullptr) source.copy(check.begin, check.end, buffer.data() + (check.begin - begin));
          check.sum = checksum(std::span(data + (check.begin - begin), check.end - check.begin));
          if (options.summed) options.summed(check.begin, check.end);
        }
        if (options.before_write) options.before_write(begin, end);
        file.write(begin, data, end - begin);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      failed = true;
    }
  };
  const auto helpers = std::min<std::uint64_t>(static_cast<std::uint64_t>(std::max(1, options.threads)), chunks);
  std::vector<std::thread> started;
  for (std::uint64_t i = 1; i < helpers; ++i) started.emplace_back(work);
  work();
  for (std::thread& thread : started) thread.join();
  if (error) std::rethrow_exception(error);
  file.finish();
  return checks;
}

}  // namespace trireme::formats
