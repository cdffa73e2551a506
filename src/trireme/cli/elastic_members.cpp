#include "trireme/cli/elastic_members.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/comm/elastic_coordinator.h"
#include "trireme/launch/job.h"

namespace trireme::cli {
namespace {

// For a rank that is to leave, to come to the end of its step.
constexpr std::chrono::seconds kLeaveGrace{30};

/// A member of another host hears of it through its script's input: its own process group is ssh's.
void tell_member(const ChildProcess& child, int signal) {
  if (child.input() < 0) return child.tell(signal);
  const std::string_view line = signal == SIGKILL ? "KILL\n" : "TERM\n";
  const bool told = ::write(child.input(), line.data(), line.size()) == static_cast<ssize_t>(line.size());
  if (signal == SIGKILL || !told) child.tell(signal);
}

}  // namespace

void ElasticMembers::set_hosts(const std::vector<launch::Host>& hosts) {
  pool_.set_hosts(hosts);
  const std::vector<int> surplus = pool_.surplus();
  // Whose host has come back stays, unless it was asked already.
  for (auto at = unwanted_.begin() + (asked_ ? 1 : 0); at != unwanted_.end();)
    at = std::ranges::find(surplus, *at) == surplus.end() ? unwanted_.erase(at) : at + 1;
  for (const int member : surplus) {
    if (std::ranges::find(unwanted_, member) != unwanted_.end()) continue;
    log_info("elastic: {} has no place for member {} any more", pool_.host_of(member), member);
    unwanted_.push_back(member);
  }
}

std::optional<int> ElasticMembers::next_to_leave() {
  if (unwanted_.empty()) return std::nullopt;
  const auto now = std::chrono::steady_clock::now();
  const int member = unwanted_.front();
  if (!asked_) asked_ = now;
  if (now - *asked_ > kLeaveGrace) {
    asked_ = now;
    log_warn("elastic: member {} on {} has not left in {} s, and is ended", member, pool_.host_of(member),
             kLeaveGrace.count());
    tell_member(*children_.at(member), SIGKILL);
  }
  return member;
}

void ElasticMembers::fill() {
  while (const auto host = pool_.next(std::chrono::steady_clock::now())) start(*host);
}

void ElasticMembers::start(const launch::Host& host) {
  const int number = next_++;
  TRIREME_CHECK(number <= comm::kMostMembers, "{} members were started", number);
  if (host.address == "localhost") {
    set_env("TRIREME_MEMBER", std::to_string(number));
    children_.emplace(number, std::make_unique<ChildProcess>(options_.command));
  } else {
    std::vector<launch::Variable> variables = {{"TRIREME_MEMBER", std::to_string(number)}};
    for (const std::string& name : options_.variables) {
      if (const auto value = env(name)) variables.emplace_back(name, *value);
    }
    const std::string script = launch::guarded_script(std::filesystem::current_path(), options_.command, variables);
    children_.emplace(number, std::make_unique<ChildProcess>(launch::words_on(host, script, options_.ssh),
                                                             ChildProcess::Streams::kPipedInput));
  }
  pool_.started(number, host);
}

std::vector<ElasticMembers::Ended> ElasticMembers::take_ended(bool failed) {
  std::vector<Ended> ended;
  for (auto at = children_.begin(); at != children_.end();) {
    const auto status = at->second->poll();
    if (!status) {
      ++at;
      continue;
    }
    const int member = at->first;
    if (!unwanted_.empty() && unwanted_.front() == member) asked_.reset();
    const bool ours = std::erase(unwanted_, member) > 0;
    ended.push_back({.member = member, .status = *status, .host = pool_.host_of(member)});
    pool_.ended(member, failed && !ours, std::chrono::steady_clock::now());
    at = children_.erase(at);
  }
  return ended;
}

void ElasticMembers::tell(int signal) {
  for (auto& [number, child] : children_) tell_member(*child, signal);
}

}  // namespace trireme::cli
