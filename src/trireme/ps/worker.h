// ps/worker.h -- a worker's side of parameter servers as a state machine: push and pull tasks, and what they wait for.
//
// A task goes to every server that owns some of its keys and is finished when all of them have answered. It is sent
// when the tasks that it comes after are finished (execute-after-finished); without them tasks run beside each other. A
// worker's pushes reach a server in the order in which they were sent, also when a view changes: all that is not
// finished then goes out again, in that order, and servers know what they have applied already.
// Depends on: filters.h, message.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "trireme/base/queue_meter.h"
#include "trireme/ps/filters.h"
#include "trireme/ps/message.h"

namespace trireme::ps {

struct WorkerOptions {
  int address = 0, manager = 0;
  std::uint64_t keys = 0;
  ValueType type = ValueType::kF64;
  Filters filters = {};
  std::size_t part_bytes = 4 << 20;  ///< of values in one message; a larger push goes in several
};

struct Push {
  std::vector<Segment> segments;  ///< sorted
  std::vector<std::byte> values;  ///< of all keys, push plane after push plane
  double rate = 0;
  Message::Op op = Message::Op::kUpdate;
  int plane = 0;  ///< of kAssign
};

struct Pull {
  std::vector<Segment> segments;
  int plane = 0;
};

struct WorkerCounters {
  std::int64_t pushes = 0, pulls = 0;              ///< tasks that are finished
  std::int64_t sent_messages = 0, sent_bytes = 0;  ///< values and keys
  std::int64_t raw_bytes = 0;                      ///< of the same without filters
  std::int64_t again = 0;                          ///< messages that went out again
};

class Worker {
 public:
  using TaskId = std::uint64_t;
  explicit Worker(const WorkerOptions& options);

  TaskId push(Push push, std::vector<TaskId> after = {});
  TaskId pull(Pull pull, std::vector<TaskId> after = {});
  bool finished(TaskId task) const { return !tasks_.contains(task); }
  /// The values of a pull that is finished, in the order of its segments; once.
  std::vector<std::byte> take(TaskId task);
  /// Of a finished task: by server, how many pushes that one had applied when it answered; once.
  std::map<int, std::uint64_t> take_versions(TaskId task);
  std::size_t open_tasks() const { return tasks_.size(); }

  void receive(int from, Message message);
  std::vector<Outgoing> take_outgoing() { return std::exchange(outgoing_, {}); }
  const View& view() const { return view_; }
  bool stopped() const { return stopped_; }
  const WorkerCounters& counters() const { return counters_; }
  /// Tasks from when they were given until they were finished.
  QueueReading queue() const { return meter_.read(); }

 private:
  struct Part {
    int server = 0;
    std::vector<Segment> segments;
    std::vector<std::uint64_t> offsets;  // of each segment among the task's keys
    bool answered = false;
  };
  struct Task {
    bool is_push = true;
    Push push;  // its values are in `values`
    Pull pull;
    std::shared_ptr<const std::vector<std::byte>> values;  // by the messages that carry stretches of them
    std::set<TaskId> after;
    std::uint64_t order = 0;  // among pushes, or pulls, that were sent; 0: not yet
    std::vector<Part> parts;
    std::size_t unanswered = 0;
    std::vector<std::byte> pulled;
    std::map<int, std::uint64_t> versions;
    QueueMeter::Nanoseconds given = 0;
    const std::vector<Segment>& segments() const { return is_push ? push.segments : pull.segments; }
  };
  TaskId add(Task task, std::vector<TaskId> after);
  void send(TaskId id, Task& task);
  void split(Task& task) const;
  void send_part(const Task& task, std::size_t part, bool with_keys);
  void finish(TaskId id);

  const WorkerOptions options_;
  View view_;
  std::vector<PlacedRange> placed_;
  std::map<TaskId, Task> tasks_;
  std::map<std::uint64_t, TaskId> by_order_;  // sent and not finished
  std::map<TaskId, std::vector<std::byte>> pulled_;
  std::map<TaskId, std::map<int, std::uint64_t>> versions_;
  std::map<int, std::set<std::uint64_t>> known_keys_;  // of this epoch, by server: lists that it was sent
  TaskId tasks_given_ = 0;
  std::uint64_t pushes_sent_ = 0, pulls_sent_ = 0;
  bool stopped_ = false;
  QueueMeter meter_;
  std::vector<Outgoing> outgoing_;
  WorkerCounters counters_;
};

}  // namespace trireme::ps
