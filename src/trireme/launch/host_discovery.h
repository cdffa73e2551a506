// launch/host_discovery.h -- asks a script again and again which hosts there are, without waiting for it.
//
// Depends on: host_pool (what it prints), base (child_process).
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/child_process.h"
#include "trireme/launch/host_pool.h"

namespace trireme::launch {

class HostDiscovery {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// `script` is a command of sh; a new run of it begins `interval` after the last one ended. One that takes longer
  /// than `patience` is ended, and its run says nothing.
  HostDiscovery(std::string script, std::chrono::milliseconds interval,
                std::chrono::milliseconds patience = std::chrono::seconds(30))
      : script_(std::move(script)), interval_(interval), patience_(patience) {}

  /// Often. What the script printed, once each time it has ended well. Its first failure, before it has named any host,
  /// is a ConfigError, as with elastic Horovod; a later one is told in the log, once until one succeeds, and the hosts
  /// known before stay.
  std::optional<std::vector<Host>> look(Time now);

 private:
  void drain();
  void complain(const std::string& why);

  const std::string script_;
  const std::chrono::milliseconds interval_, patience_;
  std::unique_ptr<ChildProcess> child_;
  std::string printed_;
  Time begun_{}, next_{};
  bool complained_ = false, succeeded_ = false;
};

}  // namespace trireme::launch
