#include "trireme/base/wall_clock.h"

#include <atomic>
#include <chrono>

namespace trireme {
namespace {

std::atomic<double> off_by_s{0};  // the process's, as its clock is

}  // namespace

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() + off_by_s.load();
}

void jump_wall_clock(double seconds) {
  double before = off_by_s.load();
  while (!off_by_s.compare_exchange_weak(before, before + seconds)) {
  }
}

}  // namespace trireme
