#include "trireme/http/events.h"

#include <algorithm>
#include <charconv>

#include "trireme/base/wall_clock.h"

namespace trireme::http {
namespace {

using Clock = std::chrono::steady_clock;

void append_field(std::string& out, std::string_view field, std::string_view value) {
  if (value.empty()) return;
  out += field;
  out += ": ";
  for (const char c : value) {
    if (c != '\n' && c != '\r' && c != '\0') out += c;
  }
  out += '\n';
}

// 0, which no event has, for what is not a number.
std::uint64_t id_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size() ? value : 0;
}

}  // namespace

std::string to_text(const Event& event) {
  std::string out;
  append_field(out, "event", event.name);
  append_field(out, "id", event.id);
  // A browser ends lines at CR, LF and CR LF; each line of the data gets a field of its own.
  std::string_view rest = event.data;
  while (true) {
    const std::size_t end = std::min(rest.find_first_of("\r\n"), rest.size());
    out += "data: ";
    out += rest.substr(0, end);
    out += '\n';
    if (end == rest.size()) break;
    rest.remove_prefix(end + (rest.substr(end).starts_with("\r\n") ? 2 : 1));
  }
  out += '\n';
  return out;
}

Response event_stream(std::function<void(EventWriter&)> body) {
  return Response::streamed("text/event-stream",
                            [body = std::move(body)](Writer& writer) {
                              EventWriter events(writer);
                              body(events);
                            })
      .set("Cache-Control", "no-store")
      .set("X-Accel-Buffering", "no");  // a proxy must pass each event on
}

EventFeed::EventFeed(std::size_t keep, std::uint64_t epoch)
    : keep_(std::max<std::size_t>(keep, 1)), epoch_(epoch ? epoch : static_cast<std::uint64_t>(wall_seconds() * 1e6)) {}

void EventFeed::publish(std::string name, std::string data) {
  const std::lock_guard lock(mutex_);
  const QueueMeter::Nanoseconds now = QueueMeter::now();
  texts_.push_back(
      {to_text({.data = std::move(data), .name = std::move(name), .id = fmt::format("{}-{}", epoch_, next_)}), now});
  ++next_;
  for (std::size_t i = 0; i < followers_.size(); ++i) meter_.arrive(now);
  if (texts_.size() > keep_) {
    for (Place* place : followers_) {
      if (place->next > oldest()) continue;
      pass(*place);
      place->missed = true;
    }
    texts_.pop_front();
  }
  changed_.notify_all();
}

void EventFeed::pass(Place& place) {
  meter_.depart(std::max(texts_[static_cast<std::size_t>(place.next - oldest())].at, place.since));
  ++place.next;
}

void EventFeed::join(Place& place) {
  const std::lock_guard lock(mutex_);
  place.since = QueueMeter::now();
  if (place.next < oldest()) place = {.next = oldest(), .missed = true, .since = place.since};
  for (std::uint64_t i = place.next; i < next_; ++i) meter_.arrive(place.since);
  followers_.push_back(&place);
}

void EventFeed::leave(Place& place) {
  const std::lock_guard lock(mutex_);
  if (std::erase(followers_, &place) == 0) return;
  while (place.next < next_) pass(place);
}

QueueReading EventFeed::queue() const {
  const std::lock_guard lock(mutex_);
  return meter_.read();
}

void EventFeed::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void EventFeed::wake() {
  const std::lock_guard lock(mutex_);  // so that nobody is between looking and waiting
  changed_.notify_all();
}

EventFeed::Place EventFeed::place_of(const std::string* last_event_id) const {
  const std::lock_guard lock(mutex_);
  if (!last_event_id) return {.next = next_};
  const std::uint64_t oldest = this->oldest();
  const std::string_view id = *last_event_id;
  const std::size_t dash = std::min(id.find('-'), id.size());
  const std::uint64_t epoch = id_number(id.substr(0, dash)),
                      last = dash < id.size() ? id_number(id.substr(dash + 1)) : 0;
  if (epoch != epoch_ || last == 0 || last >= next_ || last + 1 < oldest) return {.next = oldest, .missed = true};
  return {.next = last + 1};
}

EventFeed::NewEvents EventFeed::wait(Place& place, Clock::time_point deadline, const std::function<bool()>& enough) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return place.missed || place.next < next_ || closed_ || enough(); });
  const bool follows = std::ranges::find(followers_, &place) != followers_.end();
  if (place.missed || place.next < oldest()) {
    // One that follows stands at the oldest already: what it lost was taken from it.
    place = {.next = follows ? place.next : oldest(), .since = place.since};
    return {.missed = true};
  }
  NewEvents found{.closed = closed_};
  while (place.next < next_) {
    found.text += texts_[static_cast<std::size_t>(place.next - oldest())].text;
    follows ? pass(place) : void(++place.next);
  }
  return found;
}

Response follow(EventFeed& feed, const Request& request, FollowOptions options) {
  const std::string* last = request.header("Last-Event-ID");
  return event_stream([&feed, options = std::move(options), fresh = last == nullptr,
                       place = feed.place_of(last)](EventWriter& events) mutable {
    Client& client = events.client();
    client.on_change([&feed] { feed.wake(); });
    struct Joined {
      EventFeed& feed;
      EventFeed::Place& place;
      Joined(EventFeed& of, EventFeed::Place& at) : feed(of), place(at) { feed.join(place); }
      ~Joined() { feed.leave(place); }
      Joined(const Joined&) = delete;
      Joined& operator=(const Joined&) = delete;
      void move_to(const EventFeed::Place& other) {
        feed.leave(place);
        place = other;
        feed.join(place);
      }
    } joined(feed, place);
    const auto over = [&] { return !client.connected() || client.draining(); };
    const auto begin = [&](bool missed) {
      if (!options.snapshot) return missed ? events.send({.name = "reset"}) : events.heartbeat();
      joined.move_to(feed.place_of(nullptr));  // before the snapshot is made, so that nothing falls between
      return events.send({.data = options.snapshot(), .name = "snapshot"});
    };
    bool sent = !fresh || begin(false);
    while (sent && !over()) {
      const EventFeed::NewEvents found = feed.wait(place, Clock::now() + options.heartbeat, over);
      if (found.missed) {
        sent = begin(true);
        continue;
      }
      sent = found.text.empty() ? events.heartbeat() : events.send_text(found.text);
      if (found.closed) return;
    }
  });
}

}  // namespace trireme::http
