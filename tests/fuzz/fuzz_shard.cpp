// Files of tokens: any bytes are a file that is read or refused with its byte; what opens can be read to its end.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "trireme/data/shard_format.h"
#include "trireme/data/token_file.h"
#include "trireme/formats/format_error.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

/// A file in memory, so that no disk is waited for, with a name that says its format.
class NamedMemory {
 public:
  explicit NamedMemory(const char* ending)
      : file_(::memfd_create("fuzz", 0)),
        name_(fs::temp_directory_path() / fmt::format("trireme_fuzz_{}{}", ::getpid(), ending)) {
    fuzz::require(file_ >= 0, "there is memory for a file");
    fs::remove(name_);
    fs::create_symlink(fmt::format("/proc/{}/fd/{}", ::getpid(), file_), name_);
  }
  ~NamedMemory() {
    fs::remove(name_);
    ::close(file_);
  }
  NamedMemory(const NamedMemory&) = delete;
  NamedMemory& operator=(const NamedMemory&) = delete;

  const fs::path& write(std::string_view text) const {
    const bool written =
        ::ftruncate(file_, 0) == 0 && ::pwrite(file_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
    fuzz::require(written, "the file can be written");
    return name_;
  }

 private:
  int file_;
  fs::path name_;
};

void read_to_the_end(const TokenFile& file) {
  fuzz::require(file.document_begin(0) == 0, "the first document begins at 0");
  fuzz::require(file.document_begin(file.documents()) == file.tokens() || file.documents() == 0,
                "the last document ends with the file");
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(std::min<std::int64_t>(file.tokens(), 1 << 16)));
  file.read(0, tokens);
  for (const std::int32_t token : tokens) fuzz::require(token >= 0, "a token is no negative number");
  for (std::int64_t token = 0; token < file.tokens() && file.documents() > 0; token += 1 + file.tokens() / 100) {
    const std::int64_t document = file.document_of(token);
    fuzz::require(file.document_begin(document) <= token && token < file.document_begin(document + 1),
                  "a token lies in its document");
  }
  file.verify();
  (void)describe(file, true);
}

void try_file(const fs::path& path, const TokenFileOptions& options = {}) {
  try {
    const TokenFile file(path, options);
    try {
      read_to_the_end(file);
    } catch (const formats::FormatError& error) {
      fuzz::require(error.message().find("byte ") != std::string::npos, "an error of reading names its byte");
    }
  } catch (const formats::FormatError& error) {
    fuzz::require(error.message().find("byte ") != std::string::npos, "an error names its byte");
  }
}

/// The input with every checksum right and as long as its counts say: most changes would otherwise end at the first
/// check.
std::string fitted_shard(std::string text) {
  text.resize(std::max(text.size(), sizeof(ShardHeader)));
  ShardHeader header;
  std::memcpy(&header, text.data(), sizeof header);
  header.magic = kShardMagic;
  header.version = kShardVersion;
  header.tokens %= 5000;
  header.documents %= 1000;
  header.text_bytes %= 100;
  header.token_bytes = header.token_bytes % 2 == 0 ? 2 : 4;
  header.flags &= kShardKnownFlags;
  const ShardLayout layout = shard_layout(header);
  header.file_bytes = layout.end;
  text.resize(layout.end);
  const auto bytes = std::as_writable_bytes(std::span(text));
  for (std::uint64_t block = 0; block < layout.blocks; ++block) {
    const auto [begin, end] = shard_block(layout, block);
    const std::uint64_t checksum = shard_checksum(bytes.subspan(begin, end - begin));
    std::memcpy(text.data() + layout.checksums + block * 8, &checksum, 8);
  }
  header.checksums_checksum = shard_checksum(bytes.subspan(layout.checksums));
  header.checksum = header_checksum(header);
  std::memcpy(text.data(), &header, sizeof header);
  return text;
}

/// As many bytes as an index of Megatron's says its tokens have, while that is little.
std::size_t bytes_of_pair(std::string_view index) {
  if (index.size() < 34) return 0;
  std::uint64_t sequences = 0;
  std::memcpy(&sequences, index.data() + 18, 8);
  const std::size_t token_bytes[] = {0, 1, 1, 2, 4, 8, 8, 4, 2};
  const auto type = static_cast<std::uint8_t>(index[17]);
  std::size_t tokens = 0;
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(sequences, (index.size() - 34) / 4); ++i) {
    std::int32_t length = 0;
    std::memcpy(&length, index.data() + 34 + i * 4, 4);
    tokens += static_cast<std::size_t>(std::clamp(length, 0, 1000));
  }
  return type < std::size(token_bytes) ? tokens % 10'000 * token_bytes[type] : 0;
}

}  // namespace
}  // namespace trireme::data

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trireme::data;
  static const NamedMemory shard(".shard"), index(".idx"), bin(".bin");
  const std::string input(reinterpret_cast<const char*>(data), size);
  try_file(shard.write(input), {.end_of_text = 3});
  try_file(shard.write(fitted_shard(input)));
  index.write(input);
  try_file(bin.write(std::string(bytes_of_pair(input), '\1')));
  return 0;
}
