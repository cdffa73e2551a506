#include "trireme/kernels/host_copies.h"

#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/worker.h"
#include "trireme/kernels/cuda.h"

namespace trireme::kernels {
namespace {

class ThreadCopies final : public HostCopies {
 public:
  at::Tensor room_on_host(const at::Tensor& like) override { return at::empty_like(like); }
  at::Tensor room_on_device(const at::Tensor& on_host) override { return at::empty_like(on_host); }
  Copy out(at::Tensor from, at::Tensor to) override { return post(std::move(from), std::move(to)); }
  Copy in(at::Tensor from, at::Tensor to) override { return post(std::move(from), std::move(to)); }
  void before_compute(Copy copy) override { worker_.wait(copy); }
  void wait(Copy copy) override { worker_.wait(copy); }
  bool ended(Copy copy) override {
    worker_.wait(copy);
    return true;
  }
  std::int64_t locked_bytes() const override { return 0; }

 private:
  Copy post(at::Tensor from, at::Tensor to) {
    return worker_.post([from = std::move(from), to = std::move(to)]() mutable { to.copy_(from); });
  }
  Worker worker_;
};

/// Page-locked memory, given back by tensors and lent again: locking pages takes as long as copying them.
class LockedMemory : public std::enable_shared_from_this<LockedMemory> {
 public:
  ~LockedMemory() {
    for (const auto& [bytes, block] : free_) cuda().host_free(block);
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
      check_cuda(cuda().host_allocate(&block, std::max<std::int64_t>(bytes, 1)), "locking host memory");
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
  mutable std::mutex mutex_;
  std::multimap<std::int64_t, void*> free_;
  std::int64_t all_ = 0;
};

class StreamCopies final : public HostCopies {
 public:
  explicit StreamCopies(c10::Device device)
      : device_(device),
        impl_(c10::kCUDA),
        streams_{impl_.getStreamFromGlobalPool(device), impl_.getStreamFromGlobalPool(device)} {}
  ~StreamCopies() override {
    for (Running& one : running_) one.end->synchronize();
  }

  at::Tensor room_on_host(const at::Tensor& like) override {
    retire();
    return memory_->tensor(like.sizes(), like.scalar_type(), static_cast<std::int64_t>(like.nbytes()));
  }
  at::Tensor room_on_device(const at::Tensor& on_host) override {
    return at::empty(on_host.sizes(), on_host.options().device(device_));
  }
  Copy out(at::Tensor from, at::Tensor to) override {
    // What has gaps is put together on the device first, in the order of its computing.
    return start(from.is_contiguous() ? std::move(from) : from.contiguous(), std::move(to), /*is_out=*/true);
  }
  Copy in(at::Tensor from, at::Tensor to) override { return start(std::move(from), std::move(to), /*is_out=*/false); }

  void before_compute(Copy copy) override {
    const std::lock_guard lock(mutex_);
    const Running* one = find(copy);
    if (one == nullptr) return;
    one->end->block(impl_.getStream(device_));
    // Memory of the device is given to others in the order of computing, which has just been made to wait: for this
    // copy and for those before it on its stream.
    for (Running& earlier : running_) {
      if (earlier.is_out == one->is_out && earlier.number <= copy) earlier.on_device = at::Tensor();
    }
  }
  void wait(Copy copy) override {
    std::shared_ptr<c10::Event> end;
    {
      const std::lock_guard lock(mutex_);
      const Running* one = find(copy);
      if (one == nullptr) return;
      end = one->end;
    }
    end->synchronize();  // without the lock: others go on starting copies
    retire();
  }
  bool ended(Copy copy) override {
    retire();
    const std::lock_guard lock(mutex_);
    return find(copy) == nullptr;
  }
  std::int64_t locked_bytes() const override { return memory_->bytes(); }

 private:
  struct Running {
    Copy number;
    bool is_out;
    std::shared_ptr<c10::Event> end;  // shared with threads that wait for it
    at::Tensor on_device, on_host;
  };

  Copy start(at::Tensor from, at::Tensor to, bool is_out) {
    TRIREME_CHECK(from.nbytes() == to.nbytes() && from.scalar_type() == to.scalar_type() && from.is_contiguous() &&
                      to.is_contiguous(),
                  "a copy of {} bytes into {}", from.nbytes(), to.nbytes());
    retire();
    const c10::Stream& stream = streams_[is_out ? 0 : 1];
    c10::Event given(c10::kCUDA);
    given.record(impl_.getStream(device_));
    given.block(stream);
    if (from.nbytes() > 0) {
      const c10::StreamGuard guard(stream);
      check_cuda(cuda().copy(to.mutable_data_ptr(), from.const_data_ptr(), static_cast<std::int64_t>(from.nbytes()),
                             cuda_stream()),
                 "a copy to or from the host");
    }
    auto end = std::make_shared<c10::Event>(c10::kCUDA);
    end->record(stream);
    const std::lock_guard lock(mutex_);
    running_.push_back({++last_, is_out, std::move(end), is_out ? from : to, is_out ? to : from});
    return last_;
  }
  /// Lets go of what has ended.
  void retire() {
    std::vector<Running> over;  // goes after the lock
    const std::lock_guard lock(mutex_);
    for (auto one = running_.begin(); one != running_.end();) {
      if (!one->end->query()) {
        ++one;
        continue;
      }
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
  c10::impl::VirtualGuardImpl impl_;
  std::array<c10::Stream, 2> streams_;  // out, in
  // shared with the tensors that lie in it
  std::shared_ptr<LockedMemory> memory_ = std::make_shared<LockedMemory>();
  std::mutex mutex_;
  std::deque<Running> running_;
  Copy last_ = 0;
};

}  // namespace

std::unique_ptr<HostCopies> HostCopies::make(c10::Device device) {
  if (!device.is_cuda()) return std::make_unique<ThreadCopies>();
  cuda();  // the library is there, or this says why not
  return std::make_unique<StreamCopies>(device);
}

}  // namespace trireme::kernels
