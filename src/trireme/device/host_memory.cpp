#include "trireme/device/host_memory.h"

#include <malloc.h>

#include <climits>

namespace trireme::device {

void keep_host_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_MAX, 0);              // nothing in mappings of its own, which are given back when freed
  mallopt(M_TRIM_THRESHOLD, INT_MAX);  // and the heap does not shrink
  mallopt(M_TOP_PAD, 64 << 20);        // it grows in steps
#endif
}

}  // namespace trireme::device
