#include "trireme/launch/host_pool.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::launch {

std::chrono::milliseconds Cooldown::after(int failures) const {
  auto wait = first;
  for (int i = 1; i < failures && wait < longest; ++i) wait *= 2;
  return failures < 1 ? std::chrono::milliseconds(0) : std::min(wait, std::max(first, longest));
}

std::vector<Host> parse_discovery(std::string_view printed) {
  std::vector<Host> hosts;
  for (const std::string& raw : split(printed, '\n')) {
    const std::string line(trimmed(raw));
    if (line.empty() || line.starts_with("#")) continue;
    std::vector<Host> named;
    try {
      named = parse_hosts(line);
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("the discovery script printed \"{}\": {}", line, error.what()),
                        "let it print a line for each host: HOST or HOST:RANKS");
    }
    for (Host& host : named) {
      if (std::ranges::any_of(hosts, [&](const Host& other) { return other.address == host.address; })) {
        throw ConfigError(fmt::format("the discovery script named {} twice", host.address),
                          "let it print a line for each host: HOST or HOST:RANKS");
      }
      if (!host.slots) host.slots = 1;
      hosts.push_back(std::move(host));
    }
  }
  return hosts;
}

void HostPool::set_hosts(const std::vector<Host>& hosts) { hosts_ = hosts; }

int HostPool::running_on(const std::string& address) const {
  return static_cast<int>(std::ranges::count_if(members_, [&](const auto& one) { return one.second == address; }));
}

std::vector<int> HostPool::surplus() const {
  std::map<std::string, int> room;
  for (const Host& host : hosts_) room[host.address] = host.slots.value_or(1);
  std::vector<int> surplus;
  // From the oldest on: those that came first keep their places.
  for (const auto& [member, address] : members_) {
    if (--room[address] < 0) surplus.push_back(member);
  }
  std::ranges::reverse(surplus);
  return surplus;
}

std::optional<Host> HostPool::next(Time now) const {
  for (const Host& host : hosts_) {
    const auto record = records_.find(host.address);
    if (record != records_.end() && now < record->second.barred_until) continue;
    if (running_on(host.address) < host.slots.value_or(1)) return host;
  }
  return std::nullopt;
}

void HostPool::started(int member, const Host& host) { members_[member] = host.address; }

void HostPool::ended(int member, bool failed, Time now) {
  const auto at = members_.find(member);
  if (at == members_.end()) return;
  if (failed) {
    Record& record = records_[at->second];
    record.barred_until = now + cooldown_.after(++record.failures);
  }
  members_.erase(at);
}

void HostPool::progressed() {
  for (auto& [address, record] : records_) record.failures = 0;
}

int HostPool::room() const {
  int room = 0;
  for (const Host& host : hosts_) room += host.slots.value_or(1);
  return room;
}

std::chrono::milliseconds HostPool::barred_for(const std::string& address) const {
  const auto record = records_.find(address);
  return cooldown_.after(record == records_.end() ? 0 : record->second.failures);
}

std::string HostPool::host_of(int member) const {
  const auto at = members_.find(member);
  return at == members_.end() ? "" : at->second;
}

}  // namespace trireme::launch
