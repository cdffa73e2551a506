#include "trireme/observe/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>

#include "trireme/base/text.h"

namespace trireme::observe {
namespace {

namespace fs = std::filesystem;

/// The value after "key:" in a file of such lines, as /proc has many.
std::optional<std::string> entry(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || trimmed(std::string_view(line).substr(0, colon)) != key) continue;
    return std::string(trimmed(std::string_view(line).substr(colon + 1)));
  }
  return std::nullopt;
}

std::optional<std::uint64_t> leading_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

std::uint64_t memory_entry(const char* key) {
  const auto text = entry("/proc/meminfo", key);  // in KiB
  return text ? leading_number(*text).value_or(0) * 1024 : 0;
}

std::optional<std::string> first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

/// What a program prints, by lines; none when it is not there, fails or takes more than a few seconds.
std::vector<std::string> output_of(const std::string& command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(
      ::popen(fmt::format("timeout 5 {} 2>/dev/null", command).c_str(), "re"), &::pclose);
  if (!pipe) return {};
  std::string text;
  std::array<char, 4096> block;
  while (const std::size_t count = std::fread(block.data(), 1, block.size(), pipe.get()))
    text.append(block.data(), count);
  std::vector<std::string> lines;
  for (const std::string& line : split(text, '\n')) {
    if (!trimmed(line).empty()) lines.emplace_back(trimmed(line));
  }
  return lines;
}

std::vector<Gpu> find_gpus() {
  std::vector<Gpu> gpus;
  std::error_code none;
  if (!fs::exists("/dev/nvidiactl", none) && !fs::exists("/proc/driver/nvidia", none)) return gpus;
  for (const std::string& line :
       output_of("nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader")) {
    const auto cells = split(line, ',');
    if (cells.size() != 3) continue;  // a complaint of the driver rather than a device
    gpus.push_back({std::string(trimmed(cells[0])), std::string(trimmed(cells[1])), std::string(trimmed(cells[2]))});
  }
  if (!gpus.empty()) return gpus;
  for (const auto& device : fs::directory_iterator("/proc/driver/nvidia/gpus", none)) {
    if (auto name = entry(device.path() / "information", "Model"))
      gpus.push_back({std::move(*name), std::nullopt, std::nullopt});
  }
  return gpus;
}

std::vector<Limit> find_limits() {
  struct Row {
    const char *name, *unit;
    __rlimit_resource resource;
  };
  constexpr Row kRows[] = {{"open files", "", RLIMIT_NOFILE},
                           {"processes and threads", "", RLIMIT_NPROC},
                           {"locked memory", "bytes", RLIMIT_MEMLOCK},
                           {"address space", "bytes", RLIMIT_AS},
                           {"file size", "bytes", RLIMIT_FSIZE}};
  std::vector<Limit> limits;
  for (const Row& row : kRows) {
    rlimit limit{};
    if (::getrlimit(row.resource, &limit) != 0) continue;
    const auto value = [](rlim_t bound) {
      return bound == RLIM_INFINITY ? std::nullopt : std::optional<std::uint64_t>(bound);
    };
    limits.push_back({row.name, row.unit, value(limit.rlim_cur), value(limit.rlim_max)});
  }
  return limits;
}

/// Containers give a share of the machine that /proc does not show.
void read_container(Machine& machine) {
  if (const auto quota = first_line("/sys/fs/cgroup/cpu.max")) {  // "200000 100000", or "max 100000"
    const auto parts = split(*quota, ' ');
    const auto share = leading_number(parts[0]), period = parts.size() > 1 ? leading_number(parts[1]) : std::nullopt;
    if (share && period && *period > 0) machine.cpu_quota = static_cast<double>(*share) / static_cast<double>(*period);
  }
  if (const auto limit = first_line("/sys/fs/cgroup/memory.max")) {
    const auto bytes = leading_number(*limit);  // "max" is none
    if (bytes && *bytes < machine.memory) machine.memory_limit = bytes;
  }
}

}  // namespace

std::string cpu_model() {
  for (const char* key : {"model name", "Model", "Hardware", "cpu model"}) {  // x86, some Arm boards, others
    if (auto name = entry("/proc/cpuinfo", key)) return *name;
  }
  return {};
}

std::optional<DiskSpace> disk_space(const fs::path& path) {
  std::error_code error;
  fs::path folder = fs::absolute(path, error);
  while (!fs::is_directory(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) != 0) return std::nullopt;
  return DiskSpace{.folder = folder,
                   .free = std::uint64_t{space.f_bavail} * space.f_frsize,
                   .total = std::uint64_t{space.f_blocks} * space.f_frsize,
                   .writable = ::access(folder.c_str(), W_OK | X_OK) == 0};
}

std::uint64_t usable_memory() {
  Machine machine;
  machine.memory = memory_entry("MemTotal");
  read_container(machine);
  return machine.memory_limit.value_or(machine.memory);
}

Machine this_machine() {
  Machine machine;
  utsname name{};
  if (::uname(&name) == 0) {
    machine.host = name.nodename;
    machine.system = fmt::format("{} {}", name.sysname, name.release);
  }
  machine.cpu_model = cpu_model();
  machine.cpus = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t mine;
  machine.usable_cpus = ::sched_getaffinity(0, sizeof mine, &mine) == 0 ? CPU_COUNT(&mine) : machine.cpus;
  if (const long online = ::sysconf(_SC_NPROCESSORS_ONLN); online > 0) machine.cpus = static_cast<int>(online);
  machine.memory = memory_entry("MemTotal");
  machine.memory_available = memory_entry("MemAvailable");
  read_container(machine);
  machine.gpus = find_gpus();
  machine.limits = find_limits();
  const auto lines = output_of("mpirun --version");
  if (!lines.empty()) machine.mpi = lines[0];
  return machine;
}

}  // namespace trireme::observe
