// dashboard/dashboard.h -- the live page: watches folders of runs and sweeps, and serves what it sees.
//
//   Dashboard dashboard({.roots = {"runs"}, .program = "trireme", .token = token});
//   dashboard.start();   // http://127.0.0.1:PORT/
//
// One thread looks at files, a few times a second at those that change and seldom at others; requests are answered
// from what it has seen. Nothing here speaks to a run but through files in its folder, so a page never slows one down,
// and a run does not notice when the page ends.
//
// Everybody on this machine may look; whoever wants to change something, or comes from another machine, sends the
// token.
// Depends on: catalogue, control, watched_run, watched_sweep, webhook; http.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "trireme/dashboard/control.h"
#include "trireme/dashboard/webhook.h"
#include "trireme/http/server.h"

namespace trireme::dashboard {

struct DashboardOptions {
  std::vector<std::filesystem::path> roots;
  std::string address = "127.0.0.1";
  int port = 0;
  std::string token;                       ///< not empty
  std::vector<std::string> allowed_hosts;  ///< further names of this server
  ControlOptions control;
  WebhookOptions webhook;
  std::size_t streams = 64;                     ///< of events at once; more get 503
  std::chrono::milliseconds look{250};          ///< how often it looks at runs that train
  std::chrono::milliseconds look_around{2000};  ///< for new runs, and at those that do not train
};

class Dashboard {
 public:
  /// Takes the port and looks at all runs once. ConfigError.
  explicit Dashboard(DashboardOptions options);
  ~Dashboard();
  Dashboard(const Dashboard&) = delete;
  Dashboard& operator=(const Dashboard&) = delete;

  void start();
  int port() const;
  std::string url() const;
  std::size_t runs() const;
  std::size_t experiments() const;
  /// Streams end, what runs may finish.
  void drain(std::chrono::milliseconds timeout);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::dashboard
