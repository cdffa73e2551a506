#include "trireme/experiment/simulate.h"

#include <queue>
#include <tuple>

#include "trireme/base/error.h"

namespace trireme::experiment {
namespace {

struct RunningJob {
  double end = 0;
  int worker = 0;
  bool crashes = false;
  std::int64_t steps = 0;
  Job job;
  bool operator>(const RunningJob& other) const { return std::tie(end, worker) > std::tie(other.end, other.worker); }
};

}  // namespace

Simulated simulate(Search& search, const SimulateOptions& options) {
  TRIREME_CHECK(options.workers >= 1 && options.curve, "a simulation needs workers and curves");
  Simulated out;
  std::priority_queue<RunningJob, std::vector<RunningJob>, std::greater<>> running;
  std::vector<int> idle;
  for (int worker = options.workers - 1; worker >= 0; --worker) idle.push_back(worker);
  double now = 0;
  while (true) {
    while (!idle.empty()) {
      const std::optional<Job> job = search.next();
      if (!job) break;
      out.journal.emplace_back(*job);
      const int worker = idle.back();
      idle.pop_back();
      const bool crashes = options.fails && options.fails(*job);
      const std::int64_t steps = crashes ? (job->until - job->from + 1) / 2 : job->until - job->from;
      const double slowness = options.slowness ? options.slowness(worker) : 1.0;
      running.push({.end = now + slowness * static_cast<double>(steps),
                    .worker = worker,
                    .crashes = crashes,
                    .steps = steps,
                    .job = *job});
    }
    if (running.empty()) return out;
    const RunningJob done = running.top();
    running.pop();
    now = out.time = done.end;
    out.steps += done.steps;
    idle.push_back(done.worker);
    const Job& job = done.job;
    const Result result =
        done.crashes ? Result{.trial = job.trial, .step = job.from + done.steps, .end = Result::End::kFailed}
                     : Result{.trial = job.trial, .step = job.until, .value = options.curve(job.setting, job.until)};
    out.journal.emplace_back(result);
    search.tell(result);
    if (options.enough && options.enough(out.journal, out.steps)) return out;
  }
}

}  // namespace trireme::experiment
