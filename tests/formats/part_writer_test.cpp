#include "trireme/formats/part_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/files.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/formats/checkpoint_folder.h"
#include "trireme/formats/checkpoint_publish.h"

namespace trireme::formats {
namespace {

namespace fs = std::filesystem;

class PartWriter : public OwnFolder {
 protected:
  static std::vector<std::byte> noise(std::size_t bytes) {
    std::vector<std::byte> content(bytes);
    std::uint64_t x = 0x9E3779B97F4A7C15;
    for (std::size_t i = 0; i < bytes; ++i) {
      x = x * 6364136223846793005ULL + 1442695040888963407ULL;
      content[i] = static_cast<std::byte>(x >> 56);
    }
    return content;
  }
  std::vector<std::byte> content_of(const fs::path& path) const {
    std::vector<std::byte> bytes(fs::file_size(path));
    std::ifstream(path, std::ios::binary)
        .read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return bytes;
  }
};

TEST_F(PartWriter, WritesPiecesOfAnySizeAndSumsThem) {
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{5'000'000}, std::size_t{19'000'001}}) {
    for (const bool direct : {false, true}) {
      const auto content = noise(bytes);
      std::vector<PieceOfMemory> pieces;
      for (std::size_t at = 0, size = 1; at < bytes; at += size, size = size * 7 % 3'000'017 + 1) {
        pieces.push_back({content.data() + at, std::min(size, bytes - at)});
      }
      const auto checks = write_part(folder_ / "part", pieces, {.threads = 4, .direct = direct});
      EXPECT_TRUE(content_of(folder_ / "part") == content) << bytes;
      ASSERT_EQ(checks.size(), (bytes + kCheckedBlock - 1) / kCheckedBlock);
      for (const Checked& check : checks) {
        EXPECT_EQ(check.sum, checksum(std::span(content).subspan(check.begin, check.end - check.begin)));
      }
    }
  }
}

TEST_F(PartWriter, AFailureOfOneThreadEndsAll) {
  const auto content = noise(40'000'000);
  const PieceOfMemory piece{content.data(), content.size()};
  std::atomic<int> calls{0};
  EXPECT_THROW(write_part(folder_ / "part", {&piece, 1},
                          {.threads = 3,
                           .before_write =
                               [&](std::uint64_t begin, std::uint64_t) {
                                 ++calls;
                                 if (begin == 16 << 20) throw IoError("full");
                               }}),
               IoError);
  EXPECT_LE(calls, 5);
  EXPECT_THROW(write_part(folder_ / "none/part", {&piece, 1}), IoError);
}

/// Many threads fetch stretches of several parts; every byte comes out where it belongs.
TEST_F(PartWriter, FetchesAnyStretches) {
  const auto content = noise(9'000'000);
  const fs::path path = folder_ / "step-00000001";
  fs::create_directories(unfinished(path));
  CheckpointManifest manifest{.step = 1};
  manifest.values = nlohmann::ordered_json::object();
  StoredTensor& tensor = manifest.tensors["t"];
  tensor = {.dtype = Dtype::kU8, .shape = {static_cast<std::int64_t>(content.size())}, .slices = {}};
  for (std::size_t part = 0; part < 3; ++part) {
    const PieceOfMemory piece{content.data() + part * 3'000'000, 3'000'000};
    const std::string name = part_name(static_cast<int>(part), 3);
    manifest.parts.push_back({name, 3'000'000, write_part(unfinished(path) / name, {&piece, 1})});
    tensor.slices.push_back({part, 0, {{static_cast<std::int64_t>(part) * 3'000'000, 3'000'000}}});
  }
  publish(path, std::move(manifest), {});
  const CheckpointFolder stored(path);
  stored.verify({}, 4);
  EXPECT_TRUE(stored.read("t") == content);
  const Random random(1, "stretches");
  std::vector<std::byte> out(content.size());
  std::vector<Fetch> fetches;
  std::vector<std::pair<std::int64_t, std::int64_t>> wanted;
  for (std::uint64_t i = 0, at = 0; at < content.size(); ++i) {
    const std::uint64_t end = std::min<std::uint64_t>(content.size(), at + 1 + random.below(200'000, i));
    if (i % 3 != 0) {
      add_fetches(stored.tensor("t"), static_cast<std::int64_t>(at), static_cast<std::int64_t>(end), out.data() + at,
                  fetches);
      wanted.emplace_back(at, end);
    }
    at = end;
  }
  stored.fetch(fetches, 4);
  for (const auto& [begin, end] : wanted) {
    ASSERT_EQ(std::memcmp(out.data() + begin, content.data() + begin, static_cast<std::size_t>(end - begin)), 0)
        << begin;
  }
  EXPECT_THROW(stored.read("x"), IoError);
}

}  // namespace
}  // namespace trireme::formats
