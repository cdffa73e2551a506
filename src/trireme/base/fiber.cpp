#include "trireme/base/fiber.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "trireme/base/error.h"

// Sanitizers follow the stack pointer, and have to be told where it goes.
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace trireme {
namespace {

/// Thrown out of pause() to unwind a body that nobody goes on with.
struct FiberUnwound {};

}  // namespace

struct Fiber::Stack {
  explicit Stack(std::size_t wanted) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    bytes = (wanted + page - 1) / page * page;
    // A page below that faults: an overflow is a crash, not somebody else's memory.
    memory = ::mmap(nullptr, bytes + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TRIREME_CHECK(memory != MAP_FAILED, "no memory for a stack of {} bytes", bytes);
    base = static_cast<char*>(memory) + page;
    TRIREME_CHECK(::mprotect(base, bytes, PROT_READ | PROT_WRITE) == 0, "no memory for a stack of {} bytes", bytes);
    guard = page;
#if defined(__SANITIZE_THREAD__)
    tsan = __tsan_create_fiber(0);
#endif
  }
  ~Stack() {
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(tsan);
#endif
    ::munmap(memory, bytes + guard);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  void* memory = nullptr;
  char* base = nullptr;
  std::size_t bytes = 0, guard = 0;
  ucontext_t inside{}, outside{};
#if defined(__SANITIZE_ADDRESS__)
  void *fake_inside = nullptr, *fake_outside = nullptr;
  const void* outside_bottom = nullptr;
  std::size_t outside_bytes = 0;
#endif
#if defined(__SANITIZE_THREAD__)
  void *tsan = nullptr, *tsan_outside = nullptr;
#endif
};

Fiber::Fiber(std::function<void()> body, std::size_t stack_bytes)
    : body_(std::move(body)), stack_(std::make_unique<Stack>(stack_bytes)) {
  TRIREME_CHECK(::getcontext(&stack_->inside) == 0, "a context for a fiber");
  stack_->inside.uc_stack.ss_sp = stack_->base;
  stack_->inside.uc_stack.ss_size = stack_->bytes;
  stack_->inside.uc_link = nullptr;  // it switches out by itself
  // makecontext() hands over ints only.
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  ::makecontext(&stack_->inside, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<unsigned>(self >> 32),
                static_cast<unsigned>(self & 0xffffffffU));
}

Fiber::~Fiber() {
  if (!begun_ || ended_) return;
  unwinding_ = true;
  switch_in();
}

void Fiber::resume() {
  TRIREME_CHECK(!ended_, "a fiber that has ended does not go on");
  begun_ = true;
  switch_in();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Fiber::pause() {
  switch_out();
  if (unwinding_) throw FiberUnwound{};
}

void Fiber::enter(unsigned high, unsigned low) { reinterpret_cast<Fiber*>((std::uintptr_t{high} << 32) | low)->run(); }

void Fiber::run() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &stack_->outside_bottom, &stack_->outside_bytes);
#endif
  try {
    body_();
  } catch (const FiberUnwound&) {
  } catch (...) {
    error_ = std::current_exception();
  }
  ended_ = true;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(nullptr, stack_->outside_bottom, stack_->outside_bytes);  // for good
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(stack_->tsan_outside, 0);
#endif
  ::setcontext(&stack_->outside);
}

void Fiber::switch_in() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&stack_->fake_outside, stack_->base, stack_->bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  stack_->tsan_outside = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(stack_->tsan, 0);
#endif
  ::swapcontext(&stack_->outside, &stack_->inside);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(stack_->fake_outside, nullptr, nullptr);
#endif
}

void Fiber::switch_out() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&stack_->fake_inside, stack_->outside_bottom, stack_->outside_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(stack_->tsan_outside, 0);
#endif
  ::swapcontext(&stack_->inside, &stack_->outside);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(stack_->fake_inside, &stack_->outside_bottom, &stack_->outside_bytes);
#endif
}

}  // namespace trireme
