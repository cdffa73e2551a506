#include "trireme/observe/contention.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>

#include "trireme/base/text.h"

namespace trireme::observe {
namespace {

constexpr double kLookSeconds = 5;
constexpr int kLooksToBeSure = 3;
constexpr double kSpareCores = 0.5;  // what a desktop and this program's own helpers may take

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

bool may_use_all_cores() {
  cpu_set_t mine;
  return ::sched_getaffinity(0, sizeof mine, &mine) == 0 && CPU_COUNT(&mine) == ::sysconf(_SC_NPROCESSORS_ONLN);
}

}  // namespace

std::optional<double> busy_seconds(std::string_view proc_stat, double ticks_per_second) {
  // "cpu user nice system idle iowait irq softirq steal guest guest_nice"; guests are counted under user, too.
  std::istringstream line{std::string(proc_stat.substr(0, proc_stat.find('\n')))};
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, irq = 0, softirq = 0;
  if (!(line >> name >> user >> nice >> system >> idle >> waiting >> irq >> softirq) || name != "cpu") return {};
  return (user + nice + system + irq + softirq) / ticks_per_second;
}

std::optional<CpuTimes> cpu_times() {
  if (!may_use_all_cores()) return {};
  std::ifstream file("/proc/stat");
  std::string line;
  rusage usage{};
  if (!std::getline(file, line) || ::getrusage(RUSAGE_SELF, &usage) != 0) return {};
  const auto busy = busy_seconds(line, static_cast<double>(::sysconf(_SC_CLK_TCK)));
  if (!busy) return {};
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now().time_since_epoch();
  return CpuTimes{
      .wall = wall.count(), .machine = *busy, .process = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime)};
}

CpuContention::CpuContention(int threads, int ranks, int here, int cores)
    : threads_(threads), ranks_(ranks), here_(here), cores_(cores) {}

std::string CpuContention::note(const std::optional<CpuTimes>& now) {
  if (said_ || !now || threads_ < 2) return {};  // one thread waits for nobody
  if (!before_) before_ = now;
  const double passed = now->wall - before_->wall;
  if (passed < kLookSeconds) return {};
  const double all = (now->machine - before_->machine) / passed, own = (now->process - before_->process) / passed;
  before_ = now;
  // Ranks in other processes are taken to use what this one uses for each of its own.
  const double others = all - own * ranks_ / here_;
  const bool crowded = others > kSpareCores && others + threads_ * ranks_ > cores_ + kSpareCores;
  crowded_ = crowded ? crowded_ + 1 : 0;
  if (crowded_ < kLooksToBeSure) return {};
  said_ = true;
  return fmt::format(
      "other programs use {:.1f} of the {} cores that {} {} on: threads that wait for each other spin meanwhile, and "
      "steps take far longer; set train.omp_wait_policy = \"passive\", or fewer train.threads",
      others, cores_, counted(static_cast<std::size_t>(threads_ * ranks_), "thread"),
      threads_ * ranks_ == 1 ? "computes" : "compute");
}

}  // namespace trireme::observe
