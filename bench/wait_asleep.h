// bench/wait_asleep.h -- ranks meet without taking a core from a peer that is measured meanwhile.
#pragma once

#include <chrono>
#include <thread>

#include "trireme/comm/group.h"

namespace trireme::bench {

/// Until all ranks are here: those that wait for rank 0, which talks to the peer, sleep.
inline void wait_asleep(comm::Group& world) {
  comm::Work barrier = world.barrier();
  while (!barrier.test()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  barrier.wait();
}

}  // namespace trireme::bench
