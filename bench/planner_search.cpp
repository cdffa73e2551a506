// bench/planner_search.cpp -- how long does the search for a layout take? Llama 3 405B on 16,384 devices, against a
// limit of two seconds on one core: a person waits for it.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "bench/arguments.h"
#include "trireme/base/stopwatch.h"
#include "trireme/plan/published.h"
#include "trireme/plan/search.h"

int main(int count, char** words) {
  trireme::bench::Arguments app("The search for a layout of Llama 3 405B, beside a limit of two seconds");
  if (const auto status = app.parse(count, words)) return *status;
  using namespace trireme;
  constexpr double kLimitSeconds = 2;
  plan::Job job;
  job.shape = plan::shape_of({.family = plan::ModelFamily::kLlama,
                              .num_layers = 126,
                              .hidden_size = 16384,
                              .num_heads = 128,
                              .num_kv_heads = 8,
                              .ffn_size = 53248,
                              .vocab_size = 128256});
  job.seq_len = 8192;
  job.batch = 2048;
  const cost::Hardware hardware = cost::load_hardware("llama3-h100-16k");
  bool within = true;
  for (const int gpus : {1024, 16384}) {
    std::vector<double> seconds;
    plan::SearchResult found;
    for (int run = 0; run < 5; ++run) {
      const auto begin = std::chrono::steady_clock::now();
      found = plan::search(hardware, job, gpus, {.top = 5, .decisions = true});
      seconds.push_back(seconds_since(begin));
    }
    std::ranges::sort(seconds);
    const double median = seconds[seconds.size() / 2];
    within = within && median <= kLimitSeconds;
    fmt::print(
        "llama3-405b on {:>5} devices: {:>7} layouts, {:.2f} s (median of {}), {:.2f} of the limit of {} s; {}\n", gpus,
        found.tried, median, seconds.size(), median / kLimitSeconds, kLimitSeconds,
        found.best.empty() ? "none fits" : to_text(found.best.front().config));
  }
  return within ? 0 : 1;
}
