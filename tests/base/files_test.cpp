#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/new_file.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("trireme_files_{}", ::getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::ptrdiff_t files() const { return std::distance(fs::directory_iterator(folder_), {}); }
  fs::path folder_;
};

std::span<const std::byte> as_bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

template <typename Body>
std::string io_error(Body&& body) {
  try {
    body();
  } catch (const IoError& error) {
    return error.message();
  }
  ADD_FAILURE() << "no IoError";
  return {};
}

TEST_F(Files, WhatIsPublishedIsWhatWasWritten) {
  const fs::path path = folder_ / "a";
  NewFile file(path);
  file.reserve(10);
  file.write_at(5, as_bytes("world"));
  file.write_at(0, as_bytes("hello"));
  EXPECT_FALSE(fs::exists(path));
  NewFile moved = std::move(file);
  moved.publish();
  EXPECT_EQ(read_text_file(path, 10), "helloworld");
  EXPECT_EQ(files(), 1);
  EXPECT_THROW(moved.publish(), InternalError);
}

TEST_F(Files, WithoutPublishingNothingChanges) {
  const fs::path path = folder_ / "a";
  write_text_file(path, "before");
  { NewFile(path).write_at(0, as_bytes("after")); }
  EXPECT_EQ(read_text_file(path, 10), "before");
  EXPECT_EQ(files(), 1);
}

TEST_F(Files, TheUsersMaskDecidesWhoMayRead) {
  const mode_t before = ::umask(027);
  write_text_file(folder_ / "a", "x");
  ::umask(before);
  EXPECT_EQ(static_cast<int>(fs::status(folder_ / "a").permissions()), 0640);
}

TEST_F(Files, AFullDiskIsNoticedBeforeWriting) {
  NewFile file(folder_ / "a");
  EXPECT_THAT(io_error([&] { file.reserve(std::uint64_t{1} << 60); }),
              HasSubstr("a: no room for 1152921504606846976 bytes"));
}

TEST_F(Files, AMappedFileIsItsBytes) {
  const fs::path path = folder_ / "a";
  write_text_file(path, "");
  EXPECT_TRUE(MappedFile(path).bytes().empty());
  write_text_file(path, "text");
  MappedFile file(path);
  write_text_file(path, "another file by the same name");
  MappedFile moved(folder_ / "a");
  moved = std::move(file);
  EXPECT_EQ(moved.text(), "text");
  EXPECT_EQ(moved.size(), 4U);
  moved.check_size();
}

TEST_F(Files, OnlyRegularFilesAreMapped) {
  EXPECT_THAT(io_error([&] { MappedFile file(folder_ / "none"); }), HasSubstr("none: cannot be opened: No such file"));
  EXPECT_THAT(io_error([&] { MappedFile file(folder_); }), HasSubstr("is no regular file"));
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(io_error([&] { MappedFile file(folder_ / "pipe"); }), HasSubstr("pipe: is no regular file"));
}

TEST_F(Files, ATextFileHasALimit) {
  write_text_file(folder_ / "a", "12345");
  EXPECT_EQ(read_text_file(folder_ / "a", 5), "12345");
  EXPECT_THAT(io_error([&] { read_text_file(folder_ / "a", 4); }),
              HasSubstr("has 5 bytes, more than the 4 that are allowed"));
}

}  // namespace
}  // namespace trireme
