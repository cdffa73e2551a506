#include <algorithm>
#include <barrier>
#include <cmath>
#include <mutex>
#include <thread>

#include "trireme/base/cores.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/stopwatch.h"
#include "trireme/cli/doctor/doctor.h"
#include "trireme/comm/rank.h"
#include "trireme/observe/peak_file.h"

namespace trireme::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// a = b + x c on arrays beyond every cache, one stretch a thread; the best of several rounds. Three arrays are moved
/// (McCalpin's STREAM triad counts the same).
double memory_rate(int threads) {
  constexpr std::size_t kElements = 8 << 20;  // 64 MiB an array, over all threads
  constexpr int kRounds = 8;
  const std::size_t share = kElements / static_cast<std::size_t>(threads);
  std::vector<double> rounds(kRounds, 0);
  std::barrier together(threads);
  std::mutex mutex;
  std::vector<std::jthread> workers;
  for (int thread = 0; thread < threads; ++thread) {
    workers.emplace_back([&] {
      std::vector<double> a(share, 0), b(share, 1), c(share, 2);  // touched first by who uses it
      for (int round = 0; round < kRounds; ++round) {
        together.arrive_and_wait();
        const auto begin = Clock::now();
        for (std::size_t i = 0; i < share; ++i) a[i] = b[i] + 3.0 * c[i];
        const double seconds = seconds_since(begin);
        together.arrive_and_wait();
        const std::lock_guard lock(mutex);
        rounds[static_cast<std::size_t>(round)] = std::max(rounds[static_cast<std::size_t>(round)], seconds);
        std::swap(a, b);  // so that no round can be left out
      }
    });
  }
  workers.clear();
  const double fastest = *std::ranges::min_element(rounds);  // of the slowest thread in each
  return 3.0 * sizeof(double) * static_cast<double>(share) * threads / fastest;
}

void all_reduce(SelfTest& test) {
  constexpr std::size_t kElements = 1 << 20;
  constexpr int kCalls = 20;
  test.all_reduce_bytes = kElements * sizeof(float);
  std::mutex mutex;
  test.all_reduce_right = true;
  comm::run_ranks(test.ranks, [&](comm::Rank& rank) {
    std::vector<float> data(kElements);
    double best = INFINITY;
    bool right = true;
    for (int call = 0; call < kCalls; ++call) {
      std::ranges::fill(data, static_cast<float>(rank.rank() + 1));
      rank.world().barrier().wait();
      const auto begin = Clock::now();
      rank.world().all_reduce({data.data(), data.size(), comm::DType::kF32}, comm::Reduce::kSum).wait();
      best = std::min(best, seconds_since(begin));
      const auto sum = static_cast<float>(rank.ranks() * (rank.ranks() + 1) / 2);
      right = right && std::ranges::all_of(data, [&](float value) { return value == sum; });
    }
    const std::lock_guard lock(mutex);
    test.all_reduce_seconds = std::max(test.all_reduce_seconds, best);
    test.all_reduce_right = test.all_reduce_right && right;
  });
}

/// The best over sizes: small matrices do not reach the peak, and where bf16 is emulated large ones would take minutes.
std::optional<double> gemm_rate(const device::Runtime& runtime, device::GemmType type) {
  constexpr double kMostSecondsPerCall = 0.3, kSecondsPerSize = 0.125;
  double best = 0;
  for (const int size : {256, 512, 1024, 2048}) {
    if (best > 0 && 2.0 * size * size * size / best > kMostSecondsPerCall) break;
    const double rate = runtime.gemm_flops(size, type, kSecondsPerSize);
    if (!std::isfinite(rate)) return std::nullopt;
    best = std::max(best, rate);
  }
  return best;
}

void keep(std::string_view precision, const std::optional<double>& flops, SelfTest& test) {
  if (!flops) return;
  try {
    observe::keep_peak(precision, test.threads, *flops, "trireme doctor");
  } catch (const IoError& error) {  // the trainer then says that MFU is not known
    test.not_stored = error.message();
  }
}

}  // namespace

SelfTest test_machine(int threads, const LoadedRuntime& loaded) {
  SelfTest test;
  test.threads = threads;
  test.ranks = std::clamp(threads, 2, 8);
  test.memory_bytes_per_second = memory_rate(threads);
  all_reduce(test);
  if (loaded.runtime == nullptr) return test;
  const device::Runtime& runtime = *loaded.runtime;
  const int before = runtime.intra_op_threads();
  runtime.set_intra_op_threads(threads);
  test.gemm_error = runtime.gemm_error(64);
  const auto begin = Clock::now();
  const double before_seconds = process_cpu_seconds();
  // In turns, so that what disturbs one does not disturb all of one kind; what disturbs makes them slower.
  constexpr int kTurns = 2;
  for (int turn = 0; turn < kTurns; ++turn) {
    test.fp32_flops = std::max(test.fp32_flops, gemm_rate(runtime, device::kGemmF32));
    test.bf16_flops = std::max(test.bf16_flops, gemm_rate(runtime, device::kGemmBf16));
  }
  test.share = (process_cpu_seconds() - before_seconds) / (threads * seconds_since(begin));
  runtime.set_intra_op_threads(before);
  if (!test.quiet()) return test;  // what a busy machine does is no peak
  keep("fp32", test.fp32_flops, test);
  keep("bf16", test.bf16_flops, test);
  return test;
}

}  // namespace trireme::cli
