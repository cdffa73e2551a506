#include "trireme/ps/node.h"

#include <algorithm>
#include <thread>

#include "trireme/base/error.h"

namespace trireme::ps {
namespace {

using namespace std::chrono_literals;

constexpr int kMailTogether = 64;  // messages that a server takes before it sends copies

}  // namespace

void Outbox::add(std::vector<Outgoing> messages) {
  for (Outgoing& outgoing : messages) {
    const auto now = QueueMeter::now();
    meter_.arrive(now);
    waiting_[outgoing.to].push_back({encode_head(outgoing.message), std::move(outgoing.message.values), now});
  }
  pump();
}

bool Outbox::pump() {
  bool empty = true;
  for (auto& [to, queue] : waiting_) {
    while (!queue.empty() && mailbox_.try_post_parts(to, kMailTag, 0, queue.front().head,
                                                     {queue.front().values.data(), queue.front().values.size()})) {
      meter_.depart(queue.front().since);
      queue.pop_front();
    }
    empty = empty && queue.empty();
  }
  return empty;
}

void Outbox::keep_only(const View& view, int manager) {
  for (auto& [to, queue] : waiting_) {
    const auto is_in = [&, to = to](const std::vector<int>& nodes) {
      return std::ranges::find(nodes, to) != nodes.end();
    };
    if (to == manager || is_in(view.servers) || is_in(view.next) || is_in(view.workers)) continue;
    for (const Waiting& dropped : queue) meter_.depart(dropped.since);
    queue.clear();
  }
}

std::optional<Received> next_message(comm::Mailbox& mailbox, Outbox& outbox) {
  const bool all_posted = outbox.pump();
  std::optional<comm::Mail> mail = all_posted ? mailbox.receive(kMailTag) : mailbox.try_receive(kMailTag);
  if (!mail) {
    std::this_thread::sleep_for(100us);
    return std::nullopt;
  }
  std::optional<Message> message = decode_message(std::move(mail->bytes));
  if (!message) throw CommError(fmt::format("node {} sent what is no message of parameter servers", mail->from));
  return Received{mail->from, *std::move(message)};
}

ServeReport serve(comm::Mailbox& mailbox, Server& server, int manager, bool join,
                  const std::function<bool(const Server&)>& until) {
  Outbox outbox(mailbox);
  const auto report = [&]() -> ServeReport {
    return {server.counters(), mailbox.queue(), server.queue(), outbox.queue()};
  };
  if (join) outbox.add({{manager, {.kind = Message::Kind::kJoin, .node = mailbox.address(), .is_server = true}}});
  while (!server.stopped() && !server.retired()) {
    std::optional<Received> received = next_message(mailbox, outbox);
    if (received) {
      const std::uint64_t epoch = server.view().epoch;
      server.receive(received->from, std::move(received->message));
      if (server.view().epoch != epoch) outbox.keep_only(server.view(), manager);
    }
    if (until && until(server)) break;
    // What waits already goes together with it into one copy.
    for (int i = 0; i < kMailTogether; ++i) {
      std::optional<comm::Mail> mail = mailbox.try_receive(kMailTag);
      if (!mail) break;
      if (std::optional<Message> message = decode_message(std::move(mail->bytes)))
        server.receive(mail->from, *std::move(message));
      if (until && until(server)) return report();
    }
    server.flush();
    outbox.add(server.take_outgoing());
  }
  return report();
}

void manage(comm::Mailbox& mailbox, Manager& manager, const std::function<void(Manager&)>& each) {
  Outbox outbox(mailbox);
  outbox.add(manager.take_outgoing());
  while (!manager.view().workers.empty()) {
    if (std::optional<Received> received = next_message(mailbox, outbox)) {
      manager.receive(received->from, received->message);
      if (!manager.lost().empty()) {
        throw CommError(manager.lost_text(), "restore the job from its checkpoint, with more copies or fewer servers");
      }
      if (each) each(manager);
      outbox.keep_only(manager.view(), mailbox.address());
    }
    outbox.add(manager.take_outgoing());
  }
  manager.stop();
  outbox.add(manager.take_outgoing());
  for (int i = 0; i < 10'000 && !outbox.pump(); ++i) std::this_thread::sleep_for(100us);
}

Client::Client(comm::Mailbox& mailbox, const WorkerOptions& options)
    : mailbox_(mailbox), options_(options), worker_(options), outbox_(mailbox) {}

Worker::TaskId Client::push(Push push, std::vector<Worker::TaskId> after) {
  const Worker::TaskId task = worker_.push(std::move(push), std::move(after));
  outbox_.add(worker_.take_outgoing());
  return task;
}

Worker::TaskId Client::pull(Pull pull, std::vector<Worker::TaskId> after) {
  const Worker::TaskId task = worker_.pull(std::move(pull), std::move(after));
  outbox_.add(worker_.take_outgoing());
  return task;
}

void Client::take_message(std::optional<Received> received) {
  if (!received) return;
  const std::uint64_t epoch = worker_.view().epoch;
  worker_.receive(received->from, std::move(received->message));
  if (worker_.view().epoch != epoch) outbox_.keep_only(worker_.view(), options_.manager);
  if (worker_.stopped()) throw CommError("the parameter servers were stopped while a worker still waits", "");
  outbox_.add(worker_.take_outgoing());
}

void Client::wait_for_mail() { take_message(next_message(mailbox_, outbox_)); }

void Client::wait(Worker::TaskId task) {
  while (!worker_.finished(task)) wait_for_mail();
}

void Client::poll() {
  outbox_.pump();
  while (std::optional<comm::Mail> mail = mailbox_.try_receive(kMailTag)) {
    if (std::optional<Message> message = decode_message(std::move(mail->bytes)))
      take_message(Received{mail->from, *std::move(message)});
  }
}

std::vector<std::byte> Client::take(Worker::TaskId task) {
  wait(task);
  return worker_.take(task);
}

void Client::leave() {
  outbox_.add({{options_.manager, {.kind = Message::Kind::kLeave, .node = mailbox_.address()}}});
  while (!outbox_.pump()) std::this_thread::sleep_for(100us);
}

}  // namespace trireme::ps
