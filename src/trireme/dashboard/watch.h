// dashboard/watch.h -- all runs and sweeps of the page, kept up to date by one thread and read by requests.
//
// Depends on: catalogue, watched_run, watched_sweep, webhook; http (events, metrics).
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trireme/dashboard/catalogue.h"
#include "trireme/dashboard/watched_run.h"
#include "trireme/dashboard/watched_sweep.h"
#include "trireme/dashboard/webhook.h"
#include "trireme/http/events.h"
#include "trireme/http/metrics.h"

namespace trireme::dashboard {

class FolderWatch {
 public:
  struct Parts {
    std::vector<std::filesystem::path> roots;
    http::EventFeed& feed;
    http::Metrics& metrics;
    Webhook& webhook;
  };
  explicit FolderWatch(Parts parts);

  /// Looks at runs that train; `around`: at all, and for new ones. What has changed is published.
  void look(bool around);

  /// Runs `read` with the run or sweep of this id, while nothing changes. HttpError 404.
  observe::Json with_run(const std::string& id, const std::function<observe::Json(WatchedRun&)>& read);
  observe::Json with_sweep(const std::string& id, const std::function<observe::Json(WatchedSweep&)>& read);
  /// Every run with a small curve, every sweep, the newest alerts.
  std::string overview() const;
  /// What Prometheus scrapes.
  void collect(http::Samples& samples) const;
  std::size_t runs() const;
  std::size_t experiments() const;

 private:
  void find();
  void look_at(const std::vector<WatchedRun*>& due, double now);
  void publish(const WatchedRun& run, const WatchedRun::Changes& changes);
  void tell(const Alert& alert, const std::string& id, const std::string& name, bool is_run);
  observe::Json alerts_json() const;

  Parts parts_;
  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<WatchedRun>> runs_;      // by id
  std::map<std::string, std::unique_ptr<WatchedSweep>> sweeps_;  // by id
  std::vector<std::pair<std::string, Alert>> sweep_alerts_;      // id of the sweep
  bool first_ = true, cut_ = false;
};

}  // namespace trireme::dashboard
