#include "trireme/launch/host_discovery.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>

#include "trireme/base/error.h"
#include "trireme/base/log.h"

namespace trireme::launch {
namespace {

constexpr std::size_t kMostPrinted = 1 << 20;  // a script that prints more is no list of hosts

void drain_into(int descriptor, std::string& text) {
  std::array<char, 4096> piece;
  ssize_t count = 0;
  while ((count = ::read(descriptor, piece.data(), piece.size())) > 0) {
    if (text.size() < kMostPrinted) text.append(piece.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace

void HostDiscovery::drain() {
  drain_into(child_->output(), printed_);
  std::string errors;
  drain_into(child_->errors(), errors);
  if (!errors.empty() && !complained_) log_warn("host discovery: the script says: {}", errors);
}

void HostDiscovery::complain(const std::string& why) {
  if (!succeeded_) {
    throw ConfigError(fmt::format("host discovery: {}, and no hosts are known yet", why),
                      fmt::format("run it by hand: sh -c '{}'; it prints a line for each host, HOST or HOST:RANKS, and "
                                  "ends with status 0",
                                  script_));
  }
  if (!complained_) log_warn("host discovery: {}; the hosts known before stay", why);
  complained_ = true;
}

std::optional<std::vector<Host>> HostDiscovery::look(Time now) {
  if (!child_) {
    if (now < next_) return std::nullopt;
    printed_.clear();
    child_ =
        std::make_unique<ChildProcess>(std::vector<std::string>{"sh", "-c", script_}, ChildProcess::Streams::kPiped);
    child_->close_input();
    for (const int descriptor : {child_->output(), child_->errors()})
      ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
    begun_ = now;
    return std::nullopt;
  }
  drain();
  const auto status = child_->poll();
  if (!status && now - begun_ < patience_) return std::nullopt;
  if (status) drain();  // what it printed between the two looks
  child_.reset();       // ends it where it did not end by itself
  next_ = now + interval_;
  if (!status) {
    complain("the script did not end");
  } else if (*status != 0) {
    complain("the script " + ended_how(*status));
  } else if (printed_.size() >= kMostPrinted) {
    complain("the script printed more than a list of hosts");
  } else {
    try {
      auto hosts = parse_discovery(printed_);
      complained_ = false;
      succeeded_ = true;
      return hosts;
    } catch (const ConfigError& error) {
      complain(error.what());
    }
  }
  return std::nullopt;
}

}  // namespace trireme::launch
