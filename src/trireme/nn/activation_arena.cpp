#include "trireme/nn/activation_arena.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <optional>
#include <set>

namespace trireme::nn {

std::int64_t FreeRanges::take(std::int64_t bytes) {
  const std::int64_t wanted = rounded(bytes);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [begin, end] = *range;
    if (end - begin < wanted) continue;
    free_.erase(range);
    if (begin + wanted < end) free_[begin + wanted] = end;
    return begin;
  }
  return -1;
}

void FreeRanges::give_back(std::int64_t begin, std::int64_t bytes) {
  std::int64_t end = begin + rounded(bytes);
  if (begin == end) return;
  auto after = free_.lower_bound(begin);
  if (after != free_.end() && after->first == end) {
    end = after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin() && std::prev(after)->second == begin) {
    std::prev(after)->second = end;
  } else {
    free_[begin] = end;
  }
}

std::int64_t FreeRanges::largest() const {
  std::int64_t most = 0;
  for (const auto& [begin, end] : free_) most = std::max(most, end - begin);
  return most;
}

struct ActivationArena::Room {
  std::mutex mutex;  // the last owner of a tensor may be another thread
  at::Tensor memory;
  FreeRanges free;
  std::int64_t wanted = 0, most = 0;      // bytes that are kept at once, here or elsewhere
  std::optional<at::Device> device = {};  // of what is kept
  std::set<const void*> elsewhere;        // where tensors are that found no room

  bool holds(const at::Tensor& x) const {
    if (elsewhere.contains(x.const_data_ptr())) return true;
    if (!memory.defined()) return false;
    const auto* begin = static_cast<const char*>(memory.const_data_ptr());
    const auto* at = static_cast<const char*>(x.const_data_ptr());
    return at >= begin && at < begin + memory.numel();
  }
  void want(std::int64_t bytes) {
    wanted += FreeRanges::rounded(bytes);
    most = std::max(most, wanted);
  }
};

ActivationArena::ActivationArena() : room_(std::make_shared<Room>()) {}

at::Tensor ActivationArena::keep(const at::Tensor& x) {
  if (!x.defined() || x.numel() == 0) return x;
  const auto bytes = static_cast<std::int64_t>(x.nbytes());
  std::int64_t begin = -1;
  {
    const std::scoped_lock lock(room_->mutex);
    if (room_->holds(x)) return x;
    room_->device = x.device();
    room_->want(bytes);
    begin = room_->free.take(bytes);
    if (begin < 0) room_->elsewhere.insert(x.const_data_ptr());
  }
  // Counted until nobody has it: what is kept elsewhere is wanted here as long.
  const auto let_go = [room = room_, begin, bytes](const void* data) {
    const std::scoped_lock lock(room->mutex);
    room->wanted -= FreeRanges::rounded(bytes);
    if (begin < 0) {
      room->elsewhere.erase(data);
    } else {
      room->free.give_back(begin, bytes);
    }
  };
  if (begin < 0) {
    if (room_->memory.defined()) ++left_out_;
    // The same memory with an owner that tells.
    return at::from_blob(
        x.data_ptr(), x.sizes(), x.strides(), [let_go, x](void* data) { let_go(data); }, x.options());
  }
  at::Tensor kept =
      at::from_blob(room_->memory.mutable_data_ptr<std::uint8_t>() + begin, x.sizes(), let_go, x.options());
  kept.copy_(x);
  return kept;
}

void ActivationArena::end_step() {
  const std::scoped_lock lock(room_->mutex);
  const std::int64_t has = room_->memory.defined() ? room_->memory.numel() : 0;
  if (room_->wanted > 0 || room_->most <= has) return;
  room_->memory = at::Tensor();  // first: there need not be room for both
  room_->memory = at::empty({room_->most}, at::TensorOptions(at::kByte).device(*room_->device));
  room_->free = FreeRanges(room_->most);
  left_out_ = 0;
}

std::int64_t ActivationArena::bytes() const { return room_->memory.defined() ? room_->memory.numel() : 0; }

}  // namespace trireme::nn
