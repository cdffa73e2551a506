// nn/tape.h -- what one microbatch's forward pass leaves for its backward pass.
//
// A stack: backward visits layers in exactly the opposite order, so each pops what it pushed. Weight gradients may be
// deferred (zero-bubble schedules run them later), which is why a backward pass must not overwrite tensors that such
// work still reads: see deferring(). Frames may wait on the host: nn/stash.h.
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace trireme::nn {

using Tensors = std::vector<at::Tensor>;

class Stash;
struct Stashed;

class Tape {
 public:
  Tape() = default;
  /// Frames that wait elsewhere and that nobody took are given up.
  ~Tape();
  Tape(Tape&&) = default;
  Tape& operator=(Tape&& other) noexcept;

  void push(Tensors saved) { frames_.push_back(std::move(saved)); }
  /// To wait elsewhere until it is the newest but one: popping a frame calls the next such one back.
  void push(Tensors saved, Stash& stash);
  /// Of a forward pass that split_rows() will cut: what either part has, where rows of one tensor do not tell (shards
  /// of ranks, copies elsewhere). `stash`: where both wait; null: here.
  void push(Tensors first, Tensors rest, Stash* stash);
  /// The newest frame. An InternalError when there is none or it does not hold `count` tensors: some layer pushed or
  /// popped what was not its own.
  Tensors pop(std::size_t count);
  template <std::size_t kCount>
  std::array<at::Tensor, kCount> pop();
  bool empty() const { return frames_.empty(); }
  /// Of a forward pass over `rows` rows of the batch: keeps what it left of the first `kept` of them and gives the tape
  /// of the others, as if they had been two passes. Both see the same memory. Every frame has rows, or tokens row by
  /// row, in its tensors' first dimension, or was pushed in two; nothing may be deferred.
  Tape split_rows(std::int64_t kept, std::int64_t rows);

  // Tensors that can be recomputed. discard() and recompute() come in pairs, the last discarded is recomputed first.
  /// A mark: how many frames there are.
  std::size_t height() const { return frames_.size(); }
  /// Frames above the mark let go of what lies in x's memory: the frame below it is enough to make x again.
  void discard(const at::Tensor& x, std::size_t mark);
  /// Before the frames above that mark are popped: `make` has x again from the frame below it. Not called where no
  /// frame had kept it.
  void recompute(const std::function<at::Tensor(const Tensors& below)>& make);

  /// While deferring, weight_gradient() keeps the work instead of doing it.
  void set_deferring(bool deferring) { deferring_ = deferring; }
  bool deferring() const { return deferring_; }
  void weight_gradient(std::function<void()> work);
  /// Does what was deferred, oldest first.
  void run_weight_gradients();

  /// Memory kept by the frames that are here, each storage counted once. Deferred weight gradients hold more.
  std::int64_t bytes() const;

 private:
  void give_up() noexcept;

  std::vector<Tensors> frames_;
  std::vector<std::function<void()>> deferred_;
  bool deferring_ = false;
  struct OffloadedFrame {
    std::size_t frame = 0;             // whose place in frames_ is empty
    std::shared_ptr<Stashed> stashed;  // shared with the copy under way
  };
  std::vector<OffloadedFrame> offloaded_;  // the newest last
  struct DividedFrame {
    std::size_t frame = 0;
    Tensors rest;                      // of frames that are here
    std::shared_ptr<Stashed> stashed;  // of frames that are not
  };
  std::vector<DividedFrame> divided_;  // until split_rows()
  struct Discarded {
    std::size_t mark = 0;
    struct Place {
      std::size_t frame = 0, slot = 0;
      std::vector<std::int64_t> sizes;
    };
    std::vector<Place> places;
  };
  std::vector<Discarded> discarded_;
};

template <std::size_t kCount>
std::array<at::Tensor, kCount> Tape::pop() {
  Tensors frame = pop(kCount);
  std::array<at::Tensor, kCount> out;
  std::move(frame.begin(), frame.end(), out.begin());
  return out;
}

}  // namespace trireme::nn
