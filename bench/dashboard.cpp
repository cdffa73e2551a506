// bench/dashboard.cpp -- what the live page costs: loading a hundred long runs, beside the second and the 2 MB that it
// may take, and a core's share while ten runs train and a browser watches, beside the 1 % that it may take.
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/arguments.h"
#include "trireme/base/stopwatch.h"
#include "trireme/dashboard/catalogue.h"
#include "trireme/dashboard/dashboard.h"
#include "trireme/observe/heartbeat.h"
#include "trireme/observe/run_log.h"

namespace {

using namespace trireme;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kRuns = 100, kSteps = 10'000, kLive = 10, kLiveSteps = 20, kSeconds = 15;

observe::StepRecord record_of(int run, int step) {
  const double x = step + 10.0 * run;
  return {.step = step,
          .loss = 2 + 8 / std::sqrt(x) + 0.05 * std::sin(0.37 * x),
          .grad_norm = 1 + 0.3 * std::cos(x),
          .lr = 3e-4 * (1 - step / (kSteps + 1.0)),
          .tokens = std::int64_t{step} * 524288,
          .tokens_per_s = 118'000 + 500 * std::sin(x),
          .mfu = 0.41 + 0.01 * std::sin(x),
          .memory = 6'450'839'552,
          .seconds = 4.44 + 0.01 * std::cos(x),
          .breakdown = {.compute = 3.9 + 0.01 * std::sin(x), .data = 0.02, .comm = 0.41, .overhead = 0.11},
          .queues = {
              {"prefetch",
               {.arrivals = 8, .departures = 8, .seconds = 4.44, .occupancy = 7.1, .sojourn = 7.1, .blocked = 0.01}},
              {"works",
               {.arrivals = 40, .departures = 40, .seconds = 4.44, .occupancy = 1.2, .sojourn = 1.2, .blocked = 0.2}},
              {"checkpoint", {}}}};
}

/// The same lines in every folder: writing a million different ones would take longer than all that is measured.
std::uint64_t make_runs(const fs::path& folder) {
  std::string text;
  for (int step = 1; step <= kSteps; ++step) text += observe::line_of(to_json(record_of(0, step))) + "\n";
  const std::string events = fmt::format(
      "{{\"event\":\"start\",\"time\":1,\"step\":0,\"steps\":{0},\"model\":\"llama\",\"parameters\":124439808,"
      "\"ranks\":8}}\n{{\"event\":\"stop\",\"time\":2,\"step\":{0},\"why\":\"finished\"}}\n",
      kSteps);
  for (int run = 0; run < kRuns; ++run) {
    const fs::path path = folder / fmt::format("run-{:03}", run);
    fs::create_directories(path);
    std::ofstream(path / "metrics.jsonl", std::ios::binary) << text;
    std::ofstream(path / "events.jsonl", std::ios::binary) << events;
  }
  return text.size() * kRuns;
}

/// The whole answer to a GET, head included; with `seconds`, what came in that time.
std::size_t fetch(int port, const std::string& path, double seconds = 0) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<in_port_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) std::abort();
  const std::string request = fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
  if (::send(socket, request.data(), request.size(), 0) < 0) std::abort();
  std::array<char, 1 << 16> buffer;
  std::size_t bytes = 0;
  const auto begin = Clock::now();
  while (seconds == 0 || seconds_since(begin) < seconds) {
    const ssize_t got = recv(socket, buffer.data(), buffer.size(), 0);
    if (got <= 0) break;
    bytes += static_cast<std::size_t>(got);
  }
  ::close(socket);
  return bytes;
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Another process: ten runs that write steps, as training does.
pid_t train_apart(const fs::path& folder) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  std::vector<std::unique_ptr<observe::RunLog>> logs;
  for (int run = 0; run < kLive; ++run) {
    const fs::path path = folder / fmt::format("live-{}", run);
    logs.push_back(std::make_unique<observe::RunLog>(path, std::nullopt));
    logs.back()->event("start", {{"step", 0}, {"steps", 100'000}, {"ranks", 1}});
    const int lock = ::open((path / "lock").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (::flock(lock, LOCK_EX) != 0) ::_exit(1);
  }
  for (int step = 1;; ++step) {
    for (int run = 0; run < kLive; ++run) {
      logs[static_cast<std::size_t>(run)]->step(record_of(run, step));
      observe::write_heartbeat(folder / fmt::format("live-{}", run), {.beats = step, .step = step});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1000 / kLiveSteps));
  }
}

}  // namespace

int main(int count, char** words) {
  trireme::bench::Arguments app(
      "The live page: loading a hundred runs beside a second, and a core's share while ten train");
  if (const auto status = app.parse(count, words)) return *status;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const fs::path folder = fs::temp_directory_path() / fmt::format("trireme-bench-dashboard-{}", ::getpid());
  const std::uint64_t bytes = make_runs(folder / "many");
  fmt::print("{} runs of {} steps: {:.0f} MB of metrics\n", kRuns, kSteps, 1e-6 * static_cast<double>(bytes));
  {
    const auto begin = Clock::now();
    const double cpu = cpu_seconds();
    dashboard::Dashboard page({.roots = {folder / "many"}, .token = "bench"});
    page.start();
    const double started = seconds_since(begin);
    const std::size_t overview = fetch(page.port(), "/api/overview");
    fmt::print(
        "  from a cold start to the overview: {:.2f} s ({:.2f} s of them reading; {:.2f} s of CPU), {:.2f} MB, limit 1 "
        "s and 2 MB\n",
        seconds_since(begin), started, cpu_seconds() - cpu, 1e-6 * static_cast<double>(overview));
    const auto again = Clock::now();
    fetch(page.port(), "/api/overview");
    fmt::print("  the overview once more: {:.3f} s\n", seconds_since(again));
    std::string ids;
    for (int run = 0; run < kRuns; ++run)
      ids += (run ? "," : "") + dashboard::place_id(fs::canonical(folder / "many") / fmt::format("run-{:03}", run));
    const auto compared = Clock::now();
    const std::size_t curves = fetch(page.port(), "/api/compare?runs=" + ids);
    fmt::print("  all {} compared: {:.2f} s, {:.2f} MB\n", kRuns, seconds_since(compared),
               1e-6 * static_cast<double>(curves));
  }
  fs::create_directories(folder / "live");
  const pid_t trainer = train_apart(folder / "live");
  std::this_thread::sleep_for(std::chrono::seconds(1));
  {
    dashboard::Dashboard page({.roots = {folder / "live"}, .token = "bench"});
    page.start();
    const pid_t browser = ::fork();
    if (browser == 0) {
      fetch(page.port(), "/api/events", 1e9);
      ::_exit(0);
    }
    const double cpu = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::seconds(kSeconds));
    fmt::print("{} runs of {} steps a second, one page open: {:.2f} % of a core, limit 1 %\n", kLive, kLiveSteps,
               100 * (cpu_seconds() - cpu) / kSeconds);
    ::kill(browser, SIGKILL);
    ::waitpid(browser, nullptr, 0);
  }
  ::kill(trainer, SIGKILL);
  ::waitpid(trainer, nullptr, 0);
  fs::remove_all(folder);
}
