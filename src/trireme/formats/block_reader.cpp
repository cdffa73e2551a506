#include "trireme/formats/block_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::formats {
namespace {

constexpr const char* kWrongSum = "it does not have its checksum";

/// The parts that are read, opened once each.
class Files {
 public:
  explicit Files(const CheckpointFolder& checkpoint) : checkpoint_(checkpoint) {
    descriptors_.assign(checkpoint.manifest().parts.size(), -1);
  }
  ~Files() {
    for (const int descriptor : descriptors_) {
      if (descriptor >= 0) ::close(descriptor);
    }
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  void open(std::size_t part) {
    if (descriptors_[part] >= 0) return;
    descriptors_[part] = ::open(checkpoint_.part_path(part).c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptors_[part] < 0) {
      throw IoError(
          fmt::format("{}: cannot be opened: {}", checkpoint_.part_path(part).string(), std::strerror(errno)));
    }
  }
  /// Why not; empty when all bytes came.
  std::string read(std::size_t part, std::uint64_t at, std::byte* to, std::size_t bytes) const {
    while (bytes > 0) {
      const ssize_t got = ::pread(descriptors_[part], to, bytes, static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return fmt::format("it cannot be read: {}", std::strerror(errno));
      if (got == 0) return "the file ends before it";
      at += static_cast<std::uint64_t>(got);
      to += got;
      bytes -= static_cast<std::size_t>(got);
    }
    return {};
  }

 private:
  const CheckpointFolder& checkpoint_;
  std::vector<int> descriptors_;
};

bool goes_to_one_place(const BlockRead& read) {
  return read.fetches.size() == 1 && read.fetches[0].at <= read.check.begin &&
         read.fetches[0].at + read.fetches[0].bytes >= read.check.end;
}

}  // namespace

void read_blocks(const CheckpointFolder& checkpoint, std::span<const BlockRead> reads, int threads,
                 const std::function<void(std::size_t part, const Checked& check, std::string_view why)>& refuse) {
  Files files(checkpoint);
  for (const BlockRead& read : reads) files.open(read.part);
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    std::vector<std::byte> buffer;
    try {
      for (std::size_t i; !failed.load(std::memory_order_relaxed) && (i = next.fetch_add(1)) < reads.size();) {
        const BlockRead& read = reads[i];
        const std::size_t bytes = read.check.end - read.check.begin;
        const bool straight = goes_to_one_place(read);
        if (!straight) buffer.resize(bytes);
        std::byte* to = straight ? read.fetches[0].to + (read.check.begin - read.fetches[0].at) : buffer.data();
        if (const std::string why = files.read(read.part, read.check.begin, to, bytes); !why.empty()) {
          refuse(read.part, read.check, why);
        }
        if (checksum(std::span<const std::byte>(to, bytes)) != read.check.sum) {
          refuse(read.part, read.check, kWrongSum);
        }
        if (straight) continue;
        for (const Fetch& fetch : read.fetches) {
          const std::uint64_t from = std::max(fetch.at, read.check.begin),
                              until = std::min(fetch.at + fetch.bytes, read.check.end);
          std::memcpy(fetch.to + (from - fetch.at), to + (from - read.check.begin), until - from);
        }
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      failed = true;
    }
  };
  const auto helpers = static_cast<std::size_t>(std::max(1, threads)) - 1;
  std::vector<std::thread> started;
  for (std::size_t i = 0; i < std::min(helpers, reads.empty() ? 0 : reads.size() - 1); ++i) started.emplace_back(work);
  work();
  for (std::thread& thread : started) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace trireme::formats
