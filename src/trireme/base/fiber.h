// base/fiber.h -- a function that can pause in the midst of what it does, and go on later: a stack of its own on the
// same thread.
//
//   Fiber fiber([&] { first_half(); fiber.pause(); second_half(); });
//   fiber.resume();   // first_half()
//   fiber.resume();   // second_half()
//
// For interleaving two long computations in an order that somebody else decides, without cutting either into pieces.
// Nothing runs beside anything else: resume() comes back when the function pauses or ends.
// Depends on: base.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>

namespace trireme {

class Fiber {
 public:
  /// Nothing of `body` runs yet.
  explicit Fiber(std::function<void()> body, std::size_t stack_bytes = std::size_t{8} << 20);
  /// A body that has begun and not ended is unwound: its pause() throws.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Until the body pauses or ends; what it throws comes out here. Always from the same thread. An InternalError where
  /// it has ended.
  void resume();
  /// Called by the body.
  void pause();
  bool ended() const { return ended_; }

 private:
  struct Stack;
  static void enter(unsigned high, unsigned low);
  void run();
  void switch_in();
  void switch_out();

  std::function<void()> body_;
  std::unique_ptr<Stack> stack_;
  std::exception_ptr error_;
  bool begun_ = false, ended_ = false, unwinding_ = false;
};

}  // namespace trireme
