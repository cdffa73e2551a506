// base/cores.h -- how many cores this process may run on, and the time that it has had of them.
//
// Depends on: std.
#pragma once

namespace trireme {

/// At least 1. What taskset, numactl or a container leaves of the machine's, so not std::thread's figure, which counts
/// all of them.
int usable_cores();
/// Of all its threads, user and system.
double process_cpu_seconds();

}  // namespace trireme
