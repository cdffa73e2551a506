// Weights in huge pages: where they lie, that the kernel was told, and that numbers move with them.
#include "trireme/checkpoint/weight_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace trireme::checkpoint {
namespace {

/// Whether the mapping that has the address asks for huge pages ("hg"); "?" where the kernel does not say.
std::string advice_at(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2) here = begin <= at && at < end;
    if (here && line.starts_with("VmFlags:")) return line.find(" hg") == std::string::npos ? "no" : "yes";
  }
  return "?";
}

bool has_huge_pages() { return std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").good(); }

TEST(WeightMemory, OfParametersWithoutMastersIsInBlocksOfHugePages) {
  nn::Params params;
  nn::Param& large = params.add("large", {3000, 1001}, {}, true);
  nn::Param& small = params.add("small", {7}, {}, false);
  nn::Param& trained = params.add("trained", {5, 5}, {}, true);
  nn::Param& there = params.add("there", {4}, {}, true);
  large.has_master = small.has_master = there.has_master = false;
  there.value = there.master = at::ones({4}, at::kBFloat16);
  allocate_in_huge_pages(params, nn::Precision::kBf16, at::kCPU);
  EXPECT_EQ(large.value.sizes(), at::IntArrayRef({3000, 1001}));
  EXPECT_EQ(large.value.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(large.value.is_same(large.master));
  const auto address = reinterpret_cast<std::uintptr_t>(large.value.data_ptr());
  EXPECT_EQ(address % (std::uintptr_t{2} << 20), 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(small.value.data_ptr()), address + (3000 * 1001 * 2 + 63) / 64 * 64);
  EXPECT_FALSE(trained.value.defined());
  EXPECT_TRUE(at::equal(there.value, at::ones({4}, at::kBFloat16)));
  if (has_huge_pages()) {
    EXPECT_EQ(advice_at(large.value.data_ptr()), "yes");
  }
  // The rest is allocate()'s, which leaves these where they are.
  nn::allocate(params, nn::Precision::kBf16);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large.value.data_ptr()), address);
  EXPECT_TRUE(trained.value.defined());
}

TEST(WeightMemory, MovedTensorsKeepTheirNumbers) {
  at::Tensor codes = at::arange(300000).to(at::kChar).view({300, 1000}), floats = at::randn({17, 3}), none,
             empty = at::empty({0});
  const at::Tensor codes_before = codes, floats_before = floats;
  at::Tensor* const all[] = {&codes, &none, &floats, &empty};
  move_to_huge_pages(all);
  EXPECT_NE(codes.data_ptr(), codes_before.data_ptr());
  EXPECT_TRUE(at::equal(codes, codes_before));
  EXPECT_TRUE(at::equal(floats, floats_before));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(floats.data_ptr()) % 64, 0u);
  EXPECT_FALSE(none.defined());
}

}  // namespace
}  // namespace trireme::checkpoint
