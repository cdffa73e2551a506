#include "trireme/ps/manager.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::ps {
namespace {

bool insert_sorted(std::vector<int>& nodes, int node) {
  const auto at = std::ranges::lower_bound(nodes, node);
  if (at != nodes.end() && *at == node) return false;
  nodes.insert(at, node);
  return true;
}

}  // namespace

Manager::Manager(const ManagerOptions& options) : address_(options.address) {
  if (options.servers.empty()) throw ConfigError("parameter servers without a server", "start at least one");
  view_.servers = options.servers;
  view_.workers = options.workers;
  std::ranges::sort(view_.servers);
  std::ranges::sort(view_.workers);
  view_.copies = options.copies;
  view_.points = options.points;
  announce();
}

std::set<int> Manager::expected() const {
  std::set<int> servers(view_.servers.begin(), view_.servers.end());
  servers.insert(view_.next.begin(), view_.next.end());
  return servers;
}

void Manager::announce() {
  ++view_.epoch;
  reports_.clear();
  std::set<int> all = expected();
  all.insert(view_.workers.begin(), view_.workers.end());
  all.insert(gone_.begin(), gone_.end());  // in good order: they learn that they may go
  for (const int node : all) {
    if (node != address_) outgoing_.push_back({node, {.kind = Message::Kind::kView, .view = view_}});
  }
  gone_.clear();
}

/// The next wish, when nobody is on the way.
void Manager::advance() {
  if (reports_.size() < expected().size()) return;
  if (!view_.next.empty()) {
    for (const int server : view_.servers) {
      if (std::ranges::find(view_.next, server) == view_.next.end()) gone_.push_back(server);
    }
    view_.servers = std::exchange(view_.next, {});
    return announce();
  }
  while (!waiting_.empty()) {
    const Wish wish = waiting_.front();
    waiting_.pop_front();
    std::vector<int> next = view_.servers;
    if (wish.join ? !insert_sorted(next, wish.server) : std::erase(next, wish.server) == 0) continue;
    if (next.empty()) {
      throw ConfigError(fmt::format("server {} is the last one and cannot leave", wish.server),
                        "let another server join first");
    }
    view_.next = std::move(next);
    return announce();
  }
}

void Manager::remove(int node) {
  std::erase_if(waiting_, [&](const Wish& wish) { return wish.server == node; });
  if (std::erase(view_.workers, node) > 0) return announce();
  const bool owner = std::erase(view_.servers, node) > 0;
  const bool coming = std::erase(view_.next, node) > 0;
  if (!owner && !coming) return;
  if (view_.servers.empty()) {
    throw CommError(fmt::format("server {} is gone, and it was the last one", node),
                    "start the job again from its checkpoint");
  }
  if (view_.next == view_.servers) view_.next.clear();
  announce();
}

void Manager::receive(int from, const Message& message) {
  const int node = static_cast<int>(message.node);
  switch (message.kind) {
    case Message::Kind::kJoin:
      if (message.is_server) {
        // One that is in the view already was started anew and has nothing of what it had.
        if (std::ranges::find(view_.servers, node) != view_.servers.end()) remove(node);
        waiting_.push_back({node, true});
        advance();
      } else if (insert_sorted(view_.workers, node)) {
        announce();
      }
      return;
    case Message::Kind::kLeave:
      if (std::ranges::find(view_.workers, node) != view_.workers.end()) return remove(node);
      waiting_.push_back({node, false});
      return advance();
    case Message::Kind::kDied:
      return remove(node);
    case Message::Kind::kWhole:
      if (message.epoch != view_.epoch) return;
      reports_.insert(from);
      return advance();
    case Message::Kind::kLost:
      if (message.epoch == view_.epoch) lost_.insert(lost_.end(), message.segments.begin(), message.segments.end());
      return;
    default:
      return;
  }
}

void Manager::stop() {
  std::set<int> all = expected();
  all.insert(view_.workers.begin(), view_.workers.end());
  for (const Wish& wish : waiting_) all.insert(wish.server);
  for (const int node : all) {
    if (node != address_) outgoing_.push_back({node, {.kind = Message::Kind::kStop}});
  }
}

std::string Manager::lost_text() const {
  SegmentSet all{lost_};
  std::vector<std::string> ranges;
  for (const Segment& segment : all.segments()) {
    if (ranges.size() == 8) {
      ranges.push_back(fmt::format("and {} more", all.segments().size() - 8));
      break;
    }
    ranges.push_back(fmt::format("{}-{}", segment.begin, segment.end - 1));
  }
  return fmt::format(
      "{} of the keys ({}) are on no living server: more servers died together than there are copies ({})", all.keys(),
      fmt::join(ranges, ", "), view_.copies);
}

}  // namespace trireme::ps
