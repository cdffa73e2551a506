#include "trireme/comm/gpu_memory.h"

#include <atomic>

namespace trireme::comm {
namespace {
std::atomic<const GpuMemory*> g_memory{nullptr};
}

void set_gpu_memory(const GpuMemory& memory) { g_memory.store(&memory, std::memory_order_release); }
const GpuMemory* gpu_memory() { return g_memory.load(std::memory_order_acquire); }

}  // namespace trireme::comm
