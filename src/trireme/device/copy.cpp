#include "trireme/device/copy.h"

#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/worker.h"
#include "trireme/device/stream.h"

namespace trireme::device {
namespace {

class ThreadCopies final : public HostCopies {
 public:
  at::Tensor empty_on_host(const at::Tensor& like) override { return at::empty_like(like); }
  at::Tensor empty_on_device(const at::Tensor& on_host) override { return at::empty_like(on_host); }
  Copy to_host(at::Tensor from, at::Tensor to) override { return post(std::move(from), std::move(to)); }
  Copy to_device(at::Tensor from, at::Tensor to) override { return post(std::move(from), std::move(to)); }
  void make_stream_wait(Copy copy) override { worker_.wait(copy); }
  void wait(Copy copy) override { worker_.wait(copy); }
  bool is_done(Copy copy) override {
    worker_.wait(copy);
    return true;
  }
  QueueReading queue() override {
    QueueReading reading = worker_.queue();
    reading.blocked = 0;
    return reading;
  }
  std::int64_t pinned_bytes() const override { return 0; }

 private:
  Copy post(at::Tensor from, at::Tensor to) {
    return worker_.post([from = std::move(from), to = std::move(to)]() mutable { to.copy_(from); });
  }
  Worker worker_;
};

/// Caches pinned memory that tensors give back: locking pages takes as long as copying them.
class PinnedMemory : public std::enable_shared_from_this<PinnedMemory> {
 public:
  explicit PinnedMemory(const CudaRuntime& runtime) : runtime_(runtime) {}
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory() {
    for (const auto& [bytes, block] : free_) runtime_.free_pinned(block);
  }
  at::Tensor tensor(at::IntArrayRef sizes, at::ScalarType type, std::int64_t bytes) {
    void* block = nullptr;
    std::int64_t size = bytes;
    {
      const std::lock_guard lock(mutex_);
      // A block much larger than what it holds would be missed where it belongs.
      if (const auto found = free_.lower_bound(bytes); found != free_.end() && found->first <= bytes + bytes / 8) {
        std::tie(size, block) = *found;
        free_.erase(found);
      }
    }
    if (block == nullptr) {
      const auto wanted = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
      check_cuda(runtime_.alloc_pinned(&block, /*on_gpu=*/nullptr, wanted), "allocating pinned memory");
      const std::lock_guard lock(mutex_);
      all_ += bytes;
    }
    // shared: tensors may live longer than the copies that they were made for.
    return at::from_blob(
        block, sizes, [self = shared_from_this(), size](void* data) { self->give_back(data, size); },
        at::TensorOptions(type));
  }
  std::int64_t bytes() const {
    const std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  void give_back(void* data, std::int64_t size) {
    const std::lock_guard lock(mutex_);
    free_.emplace(size, data);
  }
  const CudaRuntime& runtime_;
  mutable std::mutex mutex_;
  std::multimap<std::int64_t, void*> free_;
  std::int64_t all_ = 0;
};

class StreamCopies final : public HostCopies {
 public:
  StreamCopies(c10::Device device, const CudaRuntime& runtime)
      : device_(device),
        runtime_(runtime),
        to_host_(kPriorityNormal, runtime),
        to_device_(kPriorityNormal, runtime),
        memory_(std::make_shared<PinnedMemory>(runtime)) {}
  ~StreamCopies() override {
    for (const Running& one : running_) one.end->synchronise();
  }

  at::Tensor empty_on_host(const at::Tensor& like) override {
    retire();
    return memory_->tensor(like.sizes(), like.scalar_type(), static_cast<std::int64_t>(like.nbytes()));
  }
  at::Tensor empty_on_device(const at::Tensor& on_host) override {
    return at::empty(on_host.sizes(), on_host.options().device(device_));
  }
  Copy to_host(at::Tensor from, at::Tensor to) override {
    // What has gaps is put together on the device first, in the order of its computing.
    return start(from.is_contiguous() ? std::move(from) : from.contiguous(), std::move(to), /*is_out=*/true);
  }
  Copy to_device(at::Tensor from, at::Tensor to) override {
    return start(std::move(from), std::move(to), /*is_out=*/false);
  }

  void make_stream_wait(Copy copy) override {
    const c10::DeviceGuard guard(device_);
    const std::lock_guard lock(mutex_);
    const Running* one = find(copy);
    if (one == nullptr) return;
    one->end->make_wait(runtime_.current_stream());
    // Memory of the device is given to others in the order of computing, which has just been made to wait: for this
    // copy and for those before it on its stream.
    for (Running& earlier : running_) {
      if (earlier.is_out == one->is_out && earlier.number <= copy) earlier.on_device = at::Tensor();
    }
  }
  void wait(Copy copy) override {
    std::shared_ptr<const CudaEvent> end;
    {
      const std::lock_guard lock(mutex_);
      const Running* one = find(copy);
      if (one == nullptr) return;
      end = one->end;
    }
    end->synchronise();  // without the lock: others go on starting copies
    retire();
  }
  bool is_done(Copy copy) override {
    retire();
    const std::lock_guard lock(mutex_);
    return find(copy) == nullptr;
  }
  QueueReading queue() override {
    retire();
    const std::lock_guard lock(mutex_);
    return meter_.read();
  }
  std::int64_t pinned_bytes() const override { return memory_->bytes(); }

 private:
  struct Running {
    Copy number;
    bool is_out;
    std::shared_ptr<const CudaEvent> end;  // shared with threads that wait for it
    at::Tensor on_device, on_host;
    QueueMeter::Nanoseconds asked;
  };

  QueueMeter::Nanoseconds arrive() {
    const std::lock_guard lock(mutex_);
    const QueueMeter::Nanoseconds now = QueueMeter::now();
    meter_.arrive(now);
    return now;
  }

  Copy start(at::Tensor from, at::Tensor to, bool is_out) {
    TRIREME_CHECK(from.nbytes() == to.nbytes() && from.scalar_type() == to.scalar_type() && from.is_contiguous() &&
                      to.is_contiguous(),
                  "a copy of {} bytes into {}", from.nbytes(), to.nbytes());
    retire();
    const QueueMeter::Nanoseconds asked = arrive();
    const c10::DeviceGuard guard(device_);
    const CudaStream stream = (is_out ? to_host_ : to_device_).get();
    CudaEvent given(kEventOrdering, runtime_);
    given.record();
    given.make_wait(stream);
    if (from.nbytes() > 0) {
      check_cuda(runtime_.memcpy_async(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes(), stream),
                 "a copy to or from the host");
    }
    auto end = std::make_shared<CudaEvent>(kEventOrdering, runtime_);
    end->record(stream);
    const std::lock_guard lock(mutex_);
    running_.push_back({++last_, is_out, std::move(end), is_out ? from : to, is_out ? to : from, asked});
    return last_;
  }
  /// Lets go of what has ended.
  void retire() {
    std::vector<Running> over;  // goes after the lock
    const std::lock_guard lock(mutex_);
    const QueueMeter::Nanoseconds now = QueueMeter::now();
    for (auto one = running_.begin(); one != running_.end();) {
      if (!one->end->is_reached()) {
        ++one;
        continue;
      }
      meter_.depart(one->asked, now);
      over.push_back(std::move(*one));
      one = running_.erase(one);
    }
  }
  Running* find(Copy copy) {
    for (Running& one : running_) {
      if (one.number == copy) return &one;
    }
    return nullptr;
  }

  c10::Device device_;
  const CudaRuntime& runtime_;
  SideStream to_host_, to_device_;
  // shared with the tensors that lie in it
  std::shared_ptr<PinnedMemory> memory_;
  std::mutex mutex_;
  std::deque<Running> running_;
  QueueMeter meter_;
  Copy last_ = 0;
};

}  // namespace

std::unique_ptr<HostCopies> HostCopies::make(c10::Device device) {
  if (!device.is_cuda()) return std::make_unique<ThreadCopies>();
  return make_on_streams(device, cuda_runtime());  // the library is there, or this says why not
}

std::unique_ptr<HostCopies> HostCopies::make_on_streams(c10::Device device, const CudaRuntime& runtime) {
  const c10::DeviceGuard guard(device);  // whose the streams are
  return std::make_unique<StreamCopies>(device, runtime);
}

}  // namespace trireme::device
