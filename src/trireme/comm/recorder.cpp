#include "trireme/comm/recorder.h"

#include <semaphore.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/log.h"

namespace trireme::comm {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

namespace {

// Words of a record.
enum Word : std::size_t { kKey = 0, kSequence = 4, kStarted = 5, kEnded = 6, kGroupPeerState = 7 };

std::uint64_t pack(std::uint32_t group, int peer, Recorder::State state) {
  return std::uint64_t{group} | static_cast<std::uint64_t>(static_cast<std::uint16_t>(peer + 1)) << 32 |
         static_cast<std::uint64_t>(state) << 56;
}

constexpr auto kRelaxed = std::memory_order_relaxed;

struct Listed {
  std::mutex mutex;
  std::map<const Recorder*, std::string> directories;
};

// Never destroyed: the thread that waits for signals outlives main().
Listed& listed() {
  static auto* all = new Listed;
  return *all;
}

sem_t signalled;

void on_signal(int) {
  const int error = errno;
  sem_post(&signalled);  // one of the few things a handler may do
  errno = error;
}

}  // namespace

Recorder::Recorder(int rank, std::size_t capacity) : rank_(rank), records_(capacity == 0 ? 1 : capacity) {}

std::uint32_t Recorder::add_group(const std::string& name) {
  const std::lock_guard lock(names_mutex_);
  group_names_.push_back(name);
  return static_cast<std::uint32_t>(group_names_.size() - 1);
}

std::uint64_t Recorder::begin(std::uint32_t group, const CallKey& key, std::uint64_t sequence, int peer,
                              std::int64_t started_ns) {
  const std::uint64_t id = next_.fetch_add(1, kRelaxed);
  Record& record = records_[id % records_.size()];
  record.id.store(0, std::memory_order_release);
  std::uint64_t words[4];
  std::memcpy(words, &key, sizeof words);
  for (std::size_t i = 0; i < 4; ++i) record.words[kKey + i].store(words[i], kRelaxed);
  record.words[kSequence].store(sequence, kRelaxed);
  record.words[kStarted].store(static_cast<std::uint64_t>(started_ns), kRelaxed);
  record.words[kEnded].store(0, kRelaxed);
  record.words[kGroupPeerState].store(pack(group, peer, State::kPending), kRelaxed);
  record.id.store(id, std::memory_order_release);
  return id;
}

void Recorder::given(std::uint64_t id) { end(id, State::kGiven, 0); }

void Recorder::end(std::uint64_t id, State state, std::int64_t ended_ns) {
  Record& record = records_[id % records_.size()];
  if (record.id.load(kRelaxed) != id) return;  // a thousand calls ago: already overwritten
  record.words[kEnded].store(static_cast<std::uint64_t>(ended_ns), kRelaxed);
  const std::uint64_t word = record.words[kGroupPeerState].load(kRelaxed) & ~(std::uint64_t{0xff} << 56);
  record.words[kGroupPeerState].store(word | static_cast<std::uint64_t>(state) << 56, kRelaxed);
}

std::vector<Recorder::Entry> Recorder::entries() const {
  std::vector<Entry> out;
  const std::uint64_t next = next_.load(kRelaxed);
  const std::uint64_t first = next > records_.size() ? next - records_.size() : 1;
  for (std::uint64_t id = first; id < next; ++id) {
    const Record& record = records_[id % records_.size()];
    if (record.id.load(std::memory_order_acquire) != id) continue;
    std::uint64_t words[8];
    for (std::size_t i = 0; i < 8; ++i) words[i] = record.words[i].load(kRelaxed);
    if (record.id.load(std::memory_order_acquire) != id) continue;
    Entry entry{.id = id, .sequence = words[kSequence]};
    std::memcpy(&entry.key, words, sizeof entry.key);
    const std::uint64_t packed = words[kGroupPeerState];
    entry.peer = static_cast<int>((packed >> 32) & 0xffff) - 1;
    entry.state = static_cast<State>(packed >> 56);
    entry.started_ns = static_cast<std::int64_t>(words[kStarted]);
    entry.ended_ns = static_cast<std::int64_t>(words[kEnded]);
    const std::lock_guard lock(names_mutex_);
    const auto group = static_cast<std::uint32_t>(packed);
    entry.group_number = group;
    entry.group = group < group_names_.size() ? group_names_[group] : "?";
    out.push_back(std::move(entry));
  }
  return out;
}

std::string Recorder::to_json(const std::string& reason) const {
  constexpr const char* kStates[] = {"pending", "done", "failed", "given to the GPU"};
  nlohmann::json calls = nlohmann::json::array();
  const std::int64_t now = now_ns();
  for (const Entry& entry : entries()) {
    nlohmann::json call = {{"id", entry.id},
                           {"group", entry.group},
                           {"op", name(entry.key.op)},
                           {"sequence", entry.sequence},
                           {"count", entry.key.count},
                           {"type", name(entry.key.type)},
                           {"algorithm", cost::name(entry.key.algorithm)},
                           {"state", kStates[static_cast<std::size_t>(entry.state)]},
                           {"started_us_ago", static_cast<double>(now - entry.started_ns) / 1e3}};
    if (entry.key.place == DeviceKind::kCuda) call["memory"] = "gpu";
    if (reduces(entry.key.op)) call["reduce"] = name(entry.key.reduce);
    if (entry.peer >= 0) call["peer"] = entry.peer;
    if (is_collective(entry.key.op)) call["root"] = entry.key.root;
    if (entry.ended_ns != 0) call["took_us"] = static_cast<double>(entry.ended_ns - entry.started_ns) / 1e3;
    calls.push_back(std::move(call));
  }
  const nlohmann::json document = {{"rank", rank_}, {"reason", reason}, {"calls", std::move(calls)}};
  return document.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void Recorder::dump(const std::string& directory, const std::string& reason) const noexcept {
  try {
    namespace fs = std::filesystem;
    fs::create_directories(directory);
    const fs::path path = fs::path(directory) / fmt::format("flight-{}.json", rank_);
    const fs::path part = path.string() + fmt::format(".part{}-{}", getpid(), dumps_.fetch_add(1));
    std::ofstream file(part);
    file << to_json(reason);
    file.close();
    if (!file) throw IoError(fmt::format("could not write {}", part.string()));
    fs::rename(part, path);
    log_info("the last calls of rank {} are in {}", rank_, path.string());
  } catch (const std::exception& error) {
    log_warn("the flight recorder of rank {} could not be written to {}: {}", rank_, directory, error.what());
  }
}

FlightListing::FlightListing(const Recorder& recorder, std::string directory) : recorder_(recorder) {
  const std::lock_guard lock(listed().mutex);
  listed().directories[&recorder_] = std::move(directory);
}

FlightListing::~FlightListing() {
  const std::lock_guard lock(listed().mutex);
  listed().directories.erase(&recorder_);
}

void write_flights_on_signal() {
  static const bool once = [] {
    sem_init(&signalled, 0, 0);
    std::thread([] {
      while (true) {
        if (sem_wait(&signalled) != 0) continue;  // interrupted
        const std::lock_guard lock(listed().mutex);
        for (const auto& [recorder, directory] : listed().directories)
          recorder->dump(directory, "asked for by SIGUSR1");
      }
    }).detach();
    struct sigaction action = {};
    action.sa_handler = &on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, nullptr);
    return true;
  }();
  (void)once;
}

}  // namespace trireme::comm
