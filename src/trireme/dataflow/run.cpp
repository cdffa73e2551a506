#include "trireme/dataflow/run.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <queue>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/comm/mailbox.h"

namespace trireme::dataflow {
namespace {

/// Backward messages first; within a direction in the order in which they came.
class Inbox {
 public:
  using Time = QueueMeter::Nanoseconds;
  explicit Inbox(Time begin = QueueMeter::now()) : meter_(begin) {}
  void push(Message message, Time now = QueueMeter::now()) {
    meter_.arrive(now);
    (message.backward ? backward_ : forward_).push_back({std::move(message), now});
    longest_ = std::max(longest_, static_cast<std::int64_t>(size()));
  }
  bool empty() const { return backward_.empty() && forward_.empty(); }
  std::size_t size() const { return backward_.size() + forward_.size(); }
  Message pop(Time now = QueueMeter::now()) {
    auto& from = backward_.empty() ? forward_ : backward_;
    Message message = std::move(from.front().message);
    meter_.depart(from.front().since, now);
    from.pop_front();
    return message;
  }
  std::int64_t longest() const { return longest_; }
  QueueReading read(Time now = QueueMeter::now()) const { return meter_.read(now); }

 private:
  struct Waiting {
    Message message;
    Time since;
  };
  std::deque<Waiting> backward_, forward_;
  std::int64_t longest_ = 0;
  QueueMeter meter_;
};

/// Lets instances in while there is room, and counts those that have come back.
class Pump {
 public:
  Pump(const Graph& graph, const Source& source, const RunOptions& options)
      : graph_(graph), source_(source), options_(options) {
    if (options.max_active_keys < 1)
      throw ConfigError("max_active_keys is below 1: no instance could come in", "let at least 1 be in flight");
  }
  std::vector<Message> next() {
    std::vector<Message> entries;
    for (; in_flight_ < options_.max_active_keys && at_ < options_.instances.size(); ++at_, ++in_flight_) {
      const int instance = options_.instances[at_];
      entries.push_back(graph_.entry({.instance = instance, .position = 0}, source_(instance)));
    }
    return entries;
  }
  void came_back() { --in_flight_, ++back_; }
  bool done() const { return back_ == options_.instances.size(); }

 private:
  const Graph& graph_;
  const Source& source_;
  const RunOptions& options_;
  std::size_t at_ = 0, back_ = 0;
  int in_flight_ = 0;
};

void require_at_rest(const Graph& graph) {
  TRIREME_CHECK(graph.open_keys() == 0, "{} forward messages have no backward one", graph.open_keys());
}

}  // namespace

VirtualTimes times_by_flops(double flops_per_second, double overhead_seconds, double link_seconds) {
  return {.service =
              [=](const Graph& graph, int node, bool backward) {
                return overhead_seconds + (backward ? 2 : 1) * graph.flops_of(node) / flops_per_second;
              },
          .link = link_seconds};
}

double VirtualResult::busiest() const {
  return busy.empty() || seconds <= 0 ? 0 : *std::ranges::max_element(busy) / seconds;
}

VirtualResult run_virtual(Graph& graph, const Source& source, const RunOptions& options, const VirtualTimes& times) {
  graph.require_complete();
  struct Event {
    double time;
    std::int64_t number;  // of two at the same time the earlier made
    int worker;           // that is done with its message; -1: a message arrives
    Message message;
    bool operator>(const Event& other) const { return time != other.time ? time > other.time : number > other.number; }
  };
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  std::vector<Inbox> inboxes(static_cast<std::size_t>(graph.workers()), Inbox(/*begin=*/0));
  std::vector<bool> working(inboxes.size(), false);
  std::vector<std::vector<Message>> results(inboxes.size());
  VirtualResult result;
  result.busy.assign(inboxes.size(), 0.0);
  Pump pump(graph, source, options);
  double now = 0;
  const auto stamp = [&] { return static_cast<Inbox::Time>(std::llround(now * 1e9)); };
  std::int64_t number = 0;
  const auto send = [&](Message message, int from) {
    const bool remote = message.node == Graph::kSource || from < 0 || graph.worker_of(message.node) != from;
    events.push({now + (remote ? times.link : 0), number++, -1, std::move(message)});
  };
  const auto start = [&](std::size_t worker) {
    if (working[worker] || inboxes[worker].empty()) return;
    Message message = inboxes[worker].pop(stamp());
    const double takes = times.service(graph, message.node, message.backward);
    result.busy[worker] += takes;
    ++result.messages;
    working[worker] = true;
    results[worker] = graph.process(std::move(message));
    events.push({now + takes, number++, static_cast<int>(worker), {}});
  };
  for (Message& entry : pump.next()) send(std::move(entry), -1);
  while (!events.empty()) {
    Event event = events.top();
    events.pop();
    now = event.time;
    if (event.worker >= 0) {
      const auto worker = static_cast<std::size_t>(event.worker);
      working[worker] = false;
      for (Message& message : results[worker]) send(std::move(message), event.worker);
      start(worker);
    } else if (event.message.node == Graph::kSource) {
      pump.came_back();
      for (Message& entry : pump.next()) send(std::move(entry), -1);
    } else {
      const auto worker = static_cast<std::size_t>(graph.worker_of(event.message.node));
      inboxes[worker].push(std::move(event.message), stamp());
      start(worker);
    }
  }
  TRIREME_CHECK(pump.done(), "messages have run out before all instances came back");
  result.seconds = now;
  for (const Inbox& inbox : inboxes) {
    result.longest_queue = std::max(result.longest_queue, inbox.longest());
    result.queues.push_back(inbox.read(stamp()));
  }
  require_at_rest(graph);
  return result;
}

DataflowResult run_seeded(Graph& graph, const Source& source, const RunOptions& options, std::uint64_t seed) {
  graph.require_complete();
  constexpr std::uint32_t kWork = 1, kStop = 2;
  constexpr int kController = 0;
  DataflowResult result;
  std::vector<DataflowResult> of_workers(static_cast<std::size_t>(graph.workers()));
  const auto address_of = [&](int node) { return node == Graph::kSource ? kController : graph.worker_of(node) + 1; };
  comm::run_mailboxes(graph.workers() + 1, {.seed = seed}, [&](comm::Mailbox& mailbox) {
    const auto post = [&](const Message& message) {
      mailbox.post(address_of(message.node), kWork, message.backward ? 1 : 0, encode(message));
    };
    if (mailbox.address() == kController) {
      Pump pump(graph, source, options);
      while (true) {
        for (const Message& entry : pump.next()) post(entry);
        if (pump.done()) break;
        mailbox.receive(kWork);
        pump.came_back();
      }
      for (int worker = 0; worker < graph.workers(); ++worker) mailbox.post(worker + 1, kStop, 0, {});
      return;
    }
    Inbox inbox;
    DataflowResult& mine = of_workers[static_cast<std::size_t>(mailbox.address() - 1)];
    bool stopped = false;
    const auto take = [&](comm::Mail mail) {
      if (mail.tag == kStop) stopped = true;
      if (mail.tag == kWork) inbox.push(decode_message(mail.bytes));
    };
    while (!stopped || !inbox.empty()) {
      if (inbox.empty()) take(mailbox.receive());
      while (auto mail = mailbox.try_receive()) take(std::move(*mail));
      if (inbox.empty()) continue;
      ++mine.messages;
      for (Message& message : graph.process(inbox.pop())) {
        // To itself without a detour.
        if (address_of(message.node) == mailbox.address()) {
          inbox.push(std::move(message));
        } else {
          // While the other side takes nothing, take what it may be waiting to send.
          const std::vector<std::byte> bytes = encode(message);
          while (!mailbox.try_post(address_of(message.node), kWork, message.backward ? 1 : 0, bytes))
            take(mailbox.receive());
        }
      }
    }
    mine.longest_queue = inbox.longest();
    mine.queues.push_back(inbox.read());
  });
  for (const DataflowResult& mine : of_workers) {
    result.messages += mine.messages;
    result.queues.insert(result.queues.end(), mine.queues.begin(), mine.queues.end());
    result.longest_queue = std::max(result.longest_queue, mine.longest_queue);
  }
  require_at_rest(graph);
  return result;
}

DataflowResult run_threads(Graph& graph, const Source& source, const RunOptions& options) {
  graph.require_complete();
  struct Worker {
    std::mutex mutex;
    std::condition_variable arrived;
    Inbox inbox;
    bool stopped = false;
    std::int64_t messages = 0;
  };
  const auto count = static_cast<std::size_t>(graph.workers());
  std::vector<Worker> workers(count + 1);  // the last: instances that came back
  std::mutex failed_mutex;
  std::exception_ptr failed;
  const auto deliver = [&](Message message) {
    Worker& to =
        workers[message.node == Graph::kSource ? count : static_cast<std::size_t>(graph.worker_of(message.node))];
    const std::lock_guard lock(to.mutex);
    to.inbox.push(std::move(message));
    to.arrived.notify_one();
  };
  const auto stop_all = [&] {
    for (Worker& worker : workers) {
      const std::lock_guard lock(worker.mutex);
      worker.stopped = true;
      worker.arrived.notify_all();
    }
  };
  const auto next_of = [](Worker& worker) -> std::optional<Message> {
    std::unique_lock lock(worker.mutex);
    worker.arrived.wait(lock, [&] { return worker.stopped || !worker.inbox.empty(); });
    if (worker.inbox.empty()) return std::nullopt;
    return worker.inbox.pop();
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        while (auto message = next_of(workers[i])) {
          ++workers[i].messages;
          for (Message& made : graph.process(std::move(*message))) deliver(std::move(made));
        }
      } catch (...) {
        {
          const std::lock_guard lock(failed_mutex);
          if (!failed) failed = std::current_exception();
        }
        stop_all();
      }
    });
  }
  Pump pump(graph, source, options);
  while (true) {
    for (Message& entry : pump.next()) deliver(std::move(entry));
    if (pump.done() || !next_of(workers[count])) break;
    pump.came_back();
  }
  stop_all();
  for (std::thread& thread : threads) thread.join();
  if (failed) std::rethrow_exception(failed);
  DataflowResult result;
  for (const Worker& worker : workers) {
    result.messages += worker.messages;
    result.longest_queue = std::max(result.longest_queue, worker.inbox.longest());
    result.queues.push_back(worker.inbox.read());
  }
  result.queues.pop_back();  // what came back is no worker's
  require_at_rest(graph);
  return result;
}

}  // namespace trireme::dataflow
