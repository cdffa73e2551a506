// tests/dashboard/folders.h -- runs and sweeps to look at, made by the code that makes real ones.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tests/files.h"
#include "trireme/observe/run_log.h"

namespace trireme::dashboard {

inline observe::StepRecord step_of_run(std::int64_t step, double loss) {
  return {.step = step,
          .loss = loss,
          .grad_norm = 1.5,
          .lr = 1e-3,
          .tokens = step * 2048,
          .tokens_per_s = 50'000,
          .mfu = std::nullopt,
          .memory = 1 << 20,
          .seconds = 0.04,
          .breakdown = {.compute = 0.03, .data = 0.001, .comm = 0.005, .overhead = 0.004}};
}

/// A run of so many steps, whose loss falls from 5.
inline void make_run(const std::filesystem::path& folder, int steps, bool finished = true) {
  observe::RunLog log(folder, std::nullopt);
  log.event(
      "start",
      {{"step", 0}, {"steps", steps}, {"model", "llama"}, {"parameters", 1000}, {"ranks", 2}, {"precision", "fp32"}});
  for (int step = 1; step <= steps; ++step) log.step(step_of_run(step, 5.0 / step));
  log.event("eval", {{"step", steps}, {"loss", 5.5 / steps}});
  if (finished) log.event("stop", {{"step", steps}, {"why", "finished"}});
  write_all(folder / "recipe.toml", "[run]\nname = \"x\"\n");
}

/// Holds a run's lock, as the process that trains does.
class HeldRunLock {
 public:
  explicit HeldRunLock(const std::filesystem::path& run)
      : descriptor_(::open((run / "lock").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)) {
    EXPECT_EQ(::flock(descriptor_, LOCK_EX | LOCK_NB), 0);
  }
  ~HeldRunLock() { ::close(descriptor_); }
  HeldRunLock(const HeldRunLock&) = delete;
  HeldRunLock& operator=(const HeldRunLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace trireme::dashboard
