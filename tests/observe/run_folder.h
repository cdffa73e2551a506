// tests/observe/run_folder.h -- a folder for one test, and runs to put into it.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/files.h"
#include "trireme/observe/step_record.h"

namespace trireme::observe {

class RunFolder : public OwnFolder {
 protected:
  static std::string read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void write(const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
};

/// Numbers with many digits, so that a lost one shows.
inline StepRecord sample_step(std::int64_t step) {
  const double x = static_cast<double>(step);
  return {.step = step,
          .loss = 10.0 / (x + 3.0),
          .grad_norm = 1.0 / (x + 7.0),
          .lr = 3e-4 / x,
          .tokens = step * 524288,
          .tokens_per_s = 12345.678 + x / 3.0,
          .mfu = step % 2 == 0 ? std::optional(0.1 + x / 1e3) : std::nullopt,
          .memory = (std::int64_t{3} << 30) + step,
          .seconds = 0.42 + x / 1e4,
          .breakdown = {.compute = 0.3, .data = 0.02, .comm = 0.1 + x / 1e4, .overhead = 0.0 + x / 3e5},
          .hash = step % 5 == 0 ? std::optional(fmt::format("{:016x}", step * 0x9E3779B97F4A7C15)) : std::nullopt};
}

}  // namespace trireme::observe
