#include "trireme/checkpoint/weight_memory.h"

#include <ATen/ops/empty.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

namespace trireme::checkpoint {
namespace {

constexpr std::int64_t kHugePage = std::int64_t{2} << 20, kLine = 64;
/// Of a block, but for a larger tensor: memory goes back when all tensors of a block have gone.
constexpr std::int64_t kBlockBytes = std::int64_t{128} << 20;

std::int64_t in_lines(std::int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

/// Bytes from the beginning of a huge page on. As many more are reserved and never touched.
at::Tensor new_block(std::int64_t bytes) {
  const at::Tensor memory = at::empty({bytes + kHugePage}, at::TensorOptions(at::kByte));
  const auto address = reinterpret_cast<std::intptr_t>(memory.mutable_data_ptr());
  const at::Tensor block = memory.narrow(0, (kHugePage - address % kHugePage) % kHugePage, bytes);
  // Advice: a kernel that takes none, or has no huge pages, gives plain ones. Whole pages alone are spoken of.
  const std::int64_t whole = bytes / 4096 * 4096;
  if (whole > 0) ::madvise(block.mutable_data_ptr(), static_cast<std::size_t>(whole), MADV_HUGEPAGE);
  return block;
}

struct Wanted {
  std::vector<std::int64_t> shape;
  at::ScalarType type;
  std::int64_t bytes() const {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    return count * static_cast<std::int64_t>(c10::elementSize(type));
  }
};

/// give(i, tensor) for each, block by block.
void lay_out(const std::vector<Wanted>& wanted, const std::function<void(std::size_t, at::Tensor)>& give) {
  for (std::size_t first = 0; first < wanted.size();) {
    std::size_t end = first;
    std::int64_t bytes = 0;
    do {
      bytes += in_lines(wanted[end++].bytes());
    } while (end < wanted.size() && bytes + in_lines(wanted[end].bytes()) <= kBlockBytes);
    const at::Tensor block = new_block(bytes);
    for (std::int64_t at = 0; first < end; ++first) {
      const std::int64_t size = wanted[first].bytes();
      give(first, block.narrow(0, at, size).view(wanted[first].type).view(wanted[first].shape));
      at += in_lines(size);
    }
  }
}

}  // namespace

void allocate_in_huge_pages(nn::Params& params, nn::Precision precision, at::Device device) {
  if (!device.is_cpu()) return;
  std::vector<nn::Param*> without;
  std::vector<Wanted> wanted;
  for (nn::Param& param : params) {
    if (param.has_master || param.master.defined()) continue;
    without.push_back(&param);
    wanted.push_back({nn::local_shape(param.placement), nn::compute_type(precision)});
  }
  lay_out(wanted,
          [&](std::size_t i, at::Tensor memory) { without[i]->value = without[i]->master = std::move(memory); });
}

void move_to_huge_pages(std::span<at::Tensor* const> tensors) {
  std::vector<at::Tensor*> moved;
  std::vector<Wanted> wanted;
  for (at::Tensor* const tensor : tensors) {
    if (!tensor->defined() || tensor->numel() == 0 || !tensor->is_cpu()) continue;
    moved.push_back(tensor);
    wanted.push_back({tensor->sizes().vec(), tensor->scalar_type()});
  }
  lay_out(wanted, [&](std::size_t i, at::Tensor memory) {
    memory.copy_(*moved[i]);
    *moved[i] = std::move(memory);
  });
}

}  // namespace trireme::checkpoint
