// nn/activation_arena.h -- saved inputs of recomputed blocks lie side by side in memory of their own (ZeRO-R, section
// 6.3: defragmentation).
//
// They live from forward to backward, everything around them for the length of a block: among each other they cut the
// device's memory into pieces, of which none may be large enough for what comes next. keep() copies them out of the
// way. How much room they take at once, the first step tells: it keeps them where they are, and after it the arena is
// as large as its peak. What does not fit, because a later step wants more, is kept where it is, and the arena grows.
// Numbers are copied, never computed, so nothing changes to the bit. Depends on: device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace trireme::nn {

/// Room of so many bytes: which parts of it are taken. First fit; neighbours that are free are one.
class FreeRanges {
 public:
  static constexpr std::int64_t kAlignment = 256;
  static std::int64_t rounded(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  explicit FreeRanges(std::int64_t bytes = 0) { give_back(0, bytes); }
  /// Where; -1: there is no stretch of that length.
  std::int64_t take(std::int64_t bytes);
  void give_back(std::int64_t begin, std::int64_t bytes);
  std::int64_t largest() const;
  std::size_t stretches() const { return free_.size(); }

 private:
  std::map<std::int64_t, std::int64_t> free_;  // begin -> end
};

/// One for a rank, which alone calls it.
class ActivationArena {
 public:
  ActivationArena();
  /// x in the arena, which is its place until nobody has it any more; x itself where it lies there already or there is
  /// no room.
  at::Tensor keep(const at::Tensor& x);
  /// Between two steps: as large as what was wanted at once, where nothing is kept.
  void end_step();
  std::int64_t bytes() const;
  /// Tensors of all steps that were kept elsewhere since the arena has its size.
  std::int64_t left_out() const { return left_out_; }

 private:
  struct Room;

  std::shared_ptr<Room> room_;  // shared with the tensors in it
  std::int64_t left_out_ = 0;
};

}  // namespace trireme::nn
