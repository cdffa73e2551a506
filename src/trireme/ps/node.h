// ps/node.h -- servers, workers and the manager over mailboxes: the loops that carry their messages.
//
// Nobody ever waits to post while mail waits to be read: what a receiver has no credit for stays in an outbox, so
// back-pressure cannot become a deadlock. What is for a node that is in no view any more is dropped.
// Depends on: comm (mailbox), manager.h, server.h, worker.h.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <optional>

#include "trireme/base/queue_meter.h"
#include "trireme/comm/mailbox.h"
#include "trireme/ps/manager.h"
#include "trireme/ps/server.h"
#include "trireme/ps/worker.h"

namespace trireme::ps {

/// Messages that wait for credit, and their way through a mailbox.
class Outbox {
 public:
  explicit Outbox(comm::Mailbox& mailbox) : mailbox_(mailbox) {}
  void add(std::vector<Outgoing> messages);
  /// Posts what has credit; true when nothing is left.
  bool pump();
  /// Drops what is for others than these.
  void keep_only(const View& view, int manager);
  QueueReading queue() const { return meter_.read(); }

 private:
  struct Waiting {
    std::vector<std::byte> head;
    SharedBytes values;
    QueueMeter::Nanoseconds since;
  };
  comm::Mailbox& mailbox_;
  std::map<int, std::deque<Waiting>> waiting_;
  QueueMeter meter_;
};

/// The next message, or nothing; blocks only while the outbox is empty. `from` is who sent it.
struct Received {
  int from;
  Message message;
};
std::optional<Received> next_message(comm::Mailbox& mailbox, Outbox& outbox);

struct ServeReport {
  ServerCounters counters;
  // Its queues, by Little's law: none of them may grow without end.
  QueueReading mailbox = {};   ///< mail that had come and was not taken
  QueueReading requests = {};  ///< pushes and pulls that waited for copies, keys or other workers
  QueueReading outbox = {};    ///< answers and copies that waited for credit
};

/// Serves until the manager says that the job is over, the server has left, or `until`, asked after every message, says
/// so (fault injection: it goes without a word). A server that is not in the first view passes `join`.
ServeReport serve(comm::Mailbox& mailbox, Server& server, int manager, bool join = false,
                  const std::function<bool(const Server&)>& until = nullptr);

/// Until all workers have left. CommError when ranges are lost. `each` is called after every message: it may give the
/// manager more, such as who is dead.
void manage(comm::Mailbox& mailbox, Manager& manager, const std::function<void(Manager&)>& each = nullptr);

/// A worker that waits. Tasks run beside each other until they are waited for.
class Client {
 public:
  Client(comm::Mailbox& mailbox, const WorkerOptions& options);

  Worker::TaskId push(Push push, std::vector<Worker::TaskId> after = {});
  Worker::TaskId pull(Pull pull, std::vector<Worker::TaskId> after = {});
  void wait(Worker::TaskId task);
  bool finished(Worker::TaskId task) const { return worker_.finished(task); }
  std::vector<std::byte> take(Worker::TaskId task);
  /// Takes what has come, without waiting.
  void poll();
  /// One message more, however long it takes.
  void wait_for_mail();
  /// Tells the manager that this worker is done.
  void leave();

  Worker& worker() { return worker_; }
  const Worker& worker() const { return worker_; }
  /// Messages that waited for credit.
  QueueReading outbox() const { return outbox_.queue(); }

 private:
  void take_message(std::optional<Received> received);

  comm::Mailbox& mailbox_;
  const WorkerOptions options_;
  Worker worker_;
  Outbox outbox_;
};

/// Values of one type as the bytes of a push, and back.
template <typename T>
std::vector<std::byte> to_bytes(std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}
template <typename T>
std::vector<T> from_bytes(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(values.data()));
  return values;
}

}  // namespace trireme::ps
