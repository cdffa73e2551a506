// comm/types.h -- what ranks exchange: raw buffers with an element type and a place.
//
// No tensor type here: the device room turns tensors into buffers.
// Depends on: base.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace trireme::comm {

enum class DType : std::uint8_t { kF32, kF64, kF16, kBF16, kI32, kI64, kU8 };
inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16,
                                       DType::kI32, DType::kI64, DType::kU8};

enum class Reduce : std::uint8_t { kSum, kAvg, kMin, kMax, kProd };
inline constexpr Reduce kAllReduces[] = {Reduce::kSum, Reduce::kAvg, Reduce::kMin, Reduce::kMax, Reduce::kProd};

constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kU8:
      return 1;
  }
  return 0;
}
std::string_view name(DType type);
std::string_view name(Reduce reduce);

enum class DeviceKind : std::uint8_t { kCpu, kCuda };
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

/// Borrowed memory: `count` elements of `type` at `data`. The owner keeps it alive until the Work it was given to is
/// done.
template <typename Pointer>
struct BasicBuffer {
  Pointer data = nullptr;
  std::size_t count = 0;
  DType type = DType::kU8;
  Device device = {};

  std::size_t bytes() const { return count * size_of(type); }
};
using Buffer = BasicBuffer<void*>;

/// What is only read; anything writable may be read.
struct ConstBuffer : BasicBuffer<const void*> {
  ConstBuffer() = default;
  ConstBuffer(const void* data_, std::size_t count_, DType type_, Device device_ = {})
      : BasicBuffer{data_, count_, type_, device_} {}
  ConstBuffer(const Buffer& other) : BasicBuffer{other.data, other.count, other.type, other.device} {}  // NOLINT
};

/// The members of a group, as transports and operations see them.
struct Members {
  std::uint32_t channel = 0;
  std::vector<int> ranks;  // world ranks
  int me = 0;              // index into ranks
};

}  // namespace trireme::comm
