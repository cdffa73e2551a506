// http/events.h -- server-sent events: their text, one client's stream, and a feed that many clients follow.
//
//   EventFeed feed;                                                          // whoever has new events
//   feed.publish("step", json);
//   server.get("/events", [&](const Request& r) { return follow(feed, r); });  // each browser
//
// A feed keeps its last events and each client its own place in them, so a slow client costs no memory: one that fell
// too far behind is told so ("reset") and goes on with what is kept. For Little's law each event is one thing for each
// client that follows, from when it is published until that client takes it or has missed it.
// Depends on: base, message.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/queue_meter.h"
#include "trireme/http/message.h"

namespace trireme::http {

struct Event {
  std::string data;  // may have several lines
  std::string name;  // empty: a browser's "message"
  std::string id;    // what a browser sends as Last-Event-ID when it comes back
};
/// As it goes over the wire. Line breaks cannot stand in a name or id, and are left out there.
std::string to_text(const Event& event);

class EventWriter {
 public:
  explicit EventWriter(Writer& writer) : writer_(writer) {}
  /// False once the client cannot get it any more.
  bool send(const Event& event) { return send_text(to_text(event)); }
  /// One or more events that are text already.
  bool send_text(std::string_view text) { return writer_.write(text); }
  /// A comment: keeps proxies from closing a silent stream, and finds out whether the client is there.
  bool heartbeat() { return writer_.write(":\n\n"); }
  bool connected() { return writer_.client().connected(); }
  Client& client() { return writer_.client(); }

 private:
  Writer& writer_;
};

/// A stream of events; `body` runs on the client's own thread, and the stream ends when it returns.
Response event_stream(std::function<void(EventWriter&)> body);

class EventFeed {
 public:
  /// `epoch` tells this feed's ids from those of one before it, such as of a server that was started again; 0: by the
  /// clock.
  explicit EventFeed(std::size_t keep = 1024, std::uint64_t epoch = 0);

  void publish(std::string name, std::string data);
  /// Streams end after the last event.
  void close();
  /// Makes those that wait look around.
  void wake();

  /// A place between two events.
  struct Place {
    std::uint64_t next = 0;             // number of the first event that is new to the client
    bool missed = false;                // events before it are gone
    QueueMeter::Nanoseconds since = 0;  // when the client joined
  };
  /// Where a client stands that has this Last-Event-ID; without one, at the end.
  Place place_of(const std::string* last_event_id) const;

  /// From now on what is new to this place counts as waiting for its client; borrowed until leave().
  void join(Place& place);
  void leave(Place& place);
  /// Events that clients have not taken yet.
  QueueReading queue() const;

  struct NewEvents {
    std::string text;  // of all new events
    bool missed = false, closed = false;
  };
  /// Waits for new events until `deadline`, or until `enough` holds at a wake(), and moves `place` behind them. Where
  /// events were missed it says only that, and `place` is at the oldest one.
  NewEvents wait(Place& place, std::chrono::steady_clock::time_point deadline, const std::function<bool()>& enough);

 private:
  const std::size_t keep_;
  const std::uint64_t epoch_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  struct Published {
    std::string text;
    QueueMeter::Nanoseconds at = 0;
  };
  /// The client of a place takes or loses the event at its front.
  void pass(Place& place);
  std::uint64_t oldest() const { return next_ - texts_.size(); }

  std::deque<Published> texts_;  // of the last events
  std::vector<Place*> followers_;
  QueueMeter meter_;
  std::uint64_t next_ = 1;  // number of the event to come
  bool closed_ = false;
};

struct FollowOptions {
  std::chrono::milliseconds heartbeat{15'000};
  /// Data of the event "snapshot", the state so far, for a client that is new or has missed events: it goes on from
  /// there. Without it those who missed events get an empty event "reset" and then what is kept.
  std::function<std::string()> snapshot;
};
/// The answer to a client that follows `feed`, which must outlive the server.
Response follow(EventFeed& feed, const Request& request, FollowOptions options = {});

}  // namespace trireme::http
