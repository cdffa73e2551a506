#include "tests/comm/fake_nccl/fake_gpu.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace trireme::fake {
namespace {

using Error = comm::GpuDriver::Error;

/// Recorded work, in the order recorded: branches of a graph run one after the other here.
struct Graph {
  std::mutex mutex;
  std::vector<Task> tasks;
  std::atomic<bool> open = true;

  void add(Task task) {
    const std::lock_guard lock(mutex);
    tasks.push_back(std::move(task));
  }
};

struct Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks;
  bool busy = false, stop = false;
  std::shared_ptr<Graph> graph;  // what it is given goes there, while that is open
  std::thread thread{[this] { run(); }};

  ~Stream() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
    thread.join();
  }
  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stop || !tasks.empty(); });
      if (tasks.empty()) return;
      Task task = std::move(tasks.front());
      tasks.pop_front();
      busy = true;
      lock.unlock();
      task();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
  bool recording() {
    if (graph && !graph->open) graph.reset();
    return graph != nullptr;
  }
  void give(Task task) {
    const std::lock_guard lock(mutex);
    if (recording()) {
      graph->add(std::move(task));
      return;
    }
    tasks.push_back(std::move(task));
    changed.notify_all();
  }
  void synchronise() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return tasks.empty() && !busy; });
  }
};

/// Reached when the stream gets there; every recording is a new one of these.
struct Point {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  std::shared_ptr<Graph> graph;  // where it was recorded
};
struct Event {
  std::mutex mutex;
  std::shared_ptr<Point> point;
};

Stream& own_stream() {
  thread_local Stream stream;
  return stream;
}
Stream& of(void* stream) { return *static_cast<Stream*>(stream); }

thread_local int g_gpu = 0;
Error use(int gpu) {
  g_gpu = gpu;
  return nullptr;
}

struct Queue {
  std::uint64_t given = 0, over = 0;  // all below `over` are
  std::set<std::uint64_t> over_ahead;
};
std::mutex g_queues_mutex;
std::condition_variable g_queues_changed;
std::map<int, Queue> g_queues;  // by GPU
void* current_stream() { return &own_stream(); }
Error is_recording(void* stream, bool* answer) {
  const std::lock_guard lock(of(stream).mutex);
  *answer = of(stream).recording();
  return nullptr;
}
Error make_stream(void** stream) {
  *stream = new Stream;
  return nullptr;
}
void free_stream(void* stream) { delete static_cast<Stream*>(stream); }
Error make_event(void** event) {
  *event = new Event;
  return nullptr;
}
void free_event(void* event) { delete static_cast<Event*>(event); }

Error record(void* event, void* stream) {
  auto point = std::make_shared<Point>();
  {
    const std::lock_guard lock(of(stream).mutex);
    if (of(stream).recording()) point->graph = of(stream).graph;
  }
  auto& its = *static_cast<Event*>(event);
  {
    const std::lock_guard lock(its.mutex);
    its.point = point;
  }
  if (point->graph) return nullptr;
  of(stream).give([point] {
    const std::lock_guard lock(point->mutex);
    point->reached = true;
    point->changed.notify_all();
  });
  return nullptr;
}

Error wait(void* stream, void* event) {
  auto& its = *static_cast<Event*>(event);
  std::shared_ptr<Point> point;
  {
    const std::lock_guard lock(its.mutex);
    point = its.point;
  }
  if (!point) return nullptr;
  if (point->graph) {  // the stream joins the recording
    const std::lock_guard lock(of(stream).mutex);
    if (!point->graph->open) return "an event of a recording that is over";
    if (of(stream).recording() && of(stream).graph != point->graph) return "two recordings would merge";
    of(stream).graph = point->graph;
    return nullptr;
  }
  {
    const std::lock_guard lock(of(stream).mutex);
    if (of(stream).recording()) return "a stream that is recorded depends on one that is not";
  }
  of(stream).give([point] {
    std::unique_lock lock(point->mutex);
    point->changed.wait(lock, [&] { return point->reached; });
  });
  return nullptr;
}

Error copy(void* to, const void* from, std::size_t bytes, void* stream) {
  of(stream).give([=] { std::memcpy(to, from, bytes); });
  return nullptr;
}
Error make_words(std::size_t words, std::uint64_t** on_host, std::uint64_t** on_gpu) {
  *on_host = *on_gpu = new std::uint64_t[words]();
  return nullptr;
}
void free_words(std::uint64_t* on_host) { delete[] on_host; }
Error mark(std::uint64_t* word, void* stream) {
  of(stream).give([word] { std::atomic_ref(*word).fetch_add(1, std::memory_order_release); });
  return nullptr;
}

constexpr Gpu kGpu = {
    .driver = {.use = use,
               .current_stream = current_stream,
               .is_recording = is_recording,
               .make_stream = make_stream,
               .free_stream = free_stream,
               .make_event = make_event,
               .free_event = free_event,
               .record = record,
               .wait = wait,
               .copy = copy,
               .make_words = make_words,
               .free_words = free_words,
               .mark = mark},
    .synchronise = [] { own_stream().synchronise(); },
    .fill =
        [](void* data, std::size_t bytes, int value, int after_ms) {
          own_stream().give([=] {
            std::this_thread::sleep_for(std::chrono::milliseconds(after_ms));
            std::memset(data, value, bytes);
          });
        },
    .copy = [](void* to, const void* from, std::size_t bytes) { copy(to, from, bytes, &own_stream()); },
    .begin_recording =
        [] {
          const std::lock_guard lock(own_stream().mutex);
          own_stream().graph = std::make_shared<Graph>();
        },
    .end_recording = []() -> void* {
      const std::lock_guard lock(own_stream().mutex);
      own_stream().graph->open = false;
      return new std::shared_ptr<Graph>(own_stream().graph);
    },
    .replay =
        [](void* graph) {
          own_stream().give([its = *static_cast<std::shared_ptr<Graph>*>(graph)] {
            for (const Task& task : its->tasks) task();
          });
        },
    .free_graph = [](void* graph) { delete static_cast<std::shared_ptr<Graph>*>(graph); },
};

}  // namespace

void enqueue(comm::GpuDriver::Stream stream, Task task) { of(stream).give(std::move(task)); }

int current_gpu() { return g_gpu; }

Turn::Turn(int gpu) : gpu_(gpu) {
  const std::lock_guard lock(g_queues_mutex);
  number_ = g_queues[gpu_].given++;
}

void Turn::wait(const std::atomic<bool>& given_up) const {
  std::unique_lock lock(g_queues_mutex);
  while (g_queues[gpu_].over < number_ && !given_up) g_queues_changed.wait_for(lock, std::chrono::milliseconds(1));
}

void Turn::finish() const {
  const std::lock_guard lock(g_queues_mutex);
  Queue& queue = g_queues[gpu_];
  queue.over_ahead.insert(number_);
  while (queue.over_ahead.erase(queue.over) == 1) ++queue.over;
  g_queues_changed.notify_all();
}

extern "C" const Gpu* trireme_fake_gpu() { return &kGpu; }

}  // namespace trireme::fake
