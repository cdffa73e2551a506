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

using Error = device::CudaError;

/// Captured work, in the order captured: branches of a graph run one after the other here.
struct Graph {
  std::mutex mutex;
  std::vector<Task> tasks;
  std::atomic<bool> open = true;
  bool instantiated = false;

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
  bool capturing() {
    if (graph && !graph->open) graph.reset();
    return graph != nullptr;
  }
  void give(Task task) {
    const std::lock_guard lock(mutex);
    if (capturing()) {
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

/// Reached when the stream gets there; every time that an event is recorded makes a new one of these.
struct Point {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  std::shared_ptr<Graph> graph;  // into which it was captured
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
Error set_device(int gpu) {
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
Error is_capturing(void* stream, bool* answer) {
  const std::lock_guard lock(of(stream).mutex);
  *answer = of(stream).capturing();
  return nullptr;
}
Error create_stream(void** stream, device::CudaStreamPriority) {
  *stream = new Stream;
  return nullptr;
}
void destroy_stream(void* stream) { delete static_cast<Stream*>(stream); }
Error create_event(void** event, device::CudaEventKind) {
  *event = new Event;
  return nullptr;
}
void destroy_event(void* event) { delete static_cast<Event*>(event); }

Error record_event(void* event, void* stream) {
  auto point = std::make_shared<Point>();
  {
    const std::lock_guard lock(of(stream).mutex);
    if (of(stream).capturing()) point->graph = of(stream).graph;
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

std::shared_ptr<Point> point_of(void* event) {
  auto& its = *static_cast<Event*>(event);
  const std::lock_guard lock(its.mutex);
  return its.point;
}

Error stream_wait_event(void* stream, void* event) {
  const std::shared_ptr<Point> point = point_of(event);
  if (!point) return nullptr;
  if (point->graph) {  // the stream joins the capture
    const std::lock_guard lock(of(stream).mutex);
    if (!point->graph->open) return "an event of a capture that is over";
    if (of(stream).capturing() && of(stream).graph != point->graph) return "two captures would merge";
    of(stream).graph = point->graph;
    return nullptr;
  }
  {
    const std::lock_guard lock(of(stream).mutex);
    if (of(stream).capturing()) return "a stream that is captured depends on one that is not";
  }
  of(stream).give([point] {
    std::unique_lock lock(point->mutex);
    point->changed.wait(lock, [&] { return point->reached; });
  });
  return nullptr;
}

Error memcpy_async(void* to, const void* from, std::size_t bytes, void* stream) {
  of(stream).give([=] { std::memcpy(to, from, bytes); });
  return nullptr;
}
Error alloc_pinned(void** on_host, void** on_gpu, std::size_t bytes) {
  *on_host = new std::byte[bytes];
  if (on_gpu != nullptr) *on_gpu = *on_host;
  return nullptr;
}
void free_pinned(void* on_host) { delete[] static_cast<std::byte*>(on_host); }
Error increment(std::uint64_t* word, void* stream) {
  of(stream).give([word] { std::atomic_ref(*word).fetch_add(1, std::memory_order_release); });
  return nullptr;
}

Error query_event(void* event, bool* reached) {
  const std::shared_ptr<Point> point = point_of(event);
  if (point && point->graph) return "an event that was captured";
  *reached = true;
  if (!point) return nullptr;
  const std::lock_guard lock(point->mutex);
  *reached = point->reached;
  return nullptr;
}
Error synchronize_event(void* event) {
  const std::shared_ptr<Point> point = point_of(event);
  if (!point) return nullptr;
  if (point->graph) return "an event that was captured";
  std::unique_lock lock(point->mutex);
  point->changed.wait(lock, [&] { return point->reached; });
  return nullptr;
}

using GraphHandle = std::shared_ptr<Graph>;  // shared by the caller, the streams that joined and replays under way
Error begin_capture(void** graph) {
  const std::lock_guard lock(own_stream().mutex);
  own_stream().graph = std::make_shared<Graph>();
  *graph = new GraphHandle(own_stream().graph);
  return nullptr;
}
Error end_capture(void* graph, bool instantiate) {
  auto& its = *static_cast<GraphHandle*>(graph);
  its->open = false;
  its->instantiated = instantiate;
  return nullptr;
}
Error launch_graph(void* graph, void* stream) {
  auto& its = *static_cast<GraphHandle*>(graph);
  if (!its->instantiated) return "a graph that was not instantiated";
  of(stream).give([its] {
    for (const Task& task : its->tasks) task();
  });
  return nullptr;
}
void destroy_graph(void* graph) { delete static_cast<GraphHandle*>(graph); }

constexpr Gpu kGpu = {
    .cuda = {.header = device::kCudaRuntimeHeader,
             .set_device = set_device,
             .current_stream = current_stream,
             .is_capturing = is_capturing,
             .create_stream = create_stream,
             .destroy_stream = destroy_stream,
             .stream_wait_event = stream_wait_event,
             .create_event = create_event,
             .destroy_event = destroy_event,
             .record_event = record_event,
             .query_event = query_event,
             .synchronize_event = synchronize_event,
             .begin_capture = begin_capture,
             .end_capture = end_capture,
             .launch_graph = launch_graph,
             .destroy_graph = destroy_graph,
             .memcpy_async = memcpy_async,
             .alloc_pinned = alloc_pinned,
             .free_pinned = free_pinned,
             .increment = increment},
    .synchronise = [] { own_stream().synchronise(); },
    .fill =
        [](void* data, std::size_t bytes, int value, int after_ms) {
          own_stream().give([=] {
            std::this_thread::sleep_for(std::chrono::milliseconds(after_ms));
            std::memset(data, value, bytes);
          });
        },
    .copy = [](void* to, const void* from, std::size_t bytes) { memcpy_async(to, from, bytes, &own_stream()); },
};

}  // namespace

void enqueue(device::CudaStream stream, Task task) { of(stream).give(std::move(task)); }

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
