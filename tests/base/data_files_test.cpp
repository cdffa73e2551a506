#include "trireme/base/data_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "trireme/base/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

class DataFiles : public ::testing::Test {
 protected:
  DataFiles() : folder_(fs::path(::testing::TempDir()) / ("trireme_data_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_ / "clusters");
    std::ofstream(folder_ / "clusters" / "mine.toml") << "name = \"mine\"\n";
    setenv("TRIREME_DATA_PATH", folder_.c_str(), 1);
  }
  ~DataFiles() override {
    unsetenv("TRIREME_DATA_PATH");
    fs::remove_all(folder_);
  }
  fs::path folder_;
};

TEST_F(DataFiles, AreFoundInFoldersOfOnesOwnAndInTheInstalledOnes) {
  EXPECT_EQ(find_data_file("clusters", "mine"), folder_ / "clusters" / "mine.toml");
  EXPECT_TRUE(fs::exists(find_data_file("clusters", "selene")));
  EXPECT_THAT(data_names("clusters"), Contains("mine"));
  EXPECT_THAT(data_names("clusters"), Contains("selene"));
}

TEST_F(DataFiles, DoNotDependOnTheWorkingDirectory) {
  const fs::path before = fs::current_path();
  fs::current_path("/");
  EXPECT_TRUE(fs::exists(find_data_file("models", "gpt3-175b")));
  fs::current_path(before);
}

TEST_F(DataFiles, APathIsAPath) {
  const std::string path = (folder_ / "clusters" / "mine.toml").string();
  EXPECT_EQ(find_data_file("clusters", path), path);
  EXPECT_THROW(find_data_file("clusters", "./nowhere.toml"), ConfigError);
}

TEST_F(DataFiles, AnUnknownNameIsAnsweredWithTheNearest) {
  try {
    find_data_file("clusters", "selen");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), HasSubstr("did you mean \"selene\"?"));
  }
}

}  // namespace
}  // namespace trireme
