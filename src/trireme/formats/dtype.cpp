#include "trireme/formats/dtype.h"

#include <iterator>

namespace trireme::formats {
namespace {

constexpr Named<Dtype> kNames[] = {
    {"BOOL", Dtype::kBool},
    {"F4", Dtype::kF4},
    {"F6_E2M3", Dtype::kF6E2M3},
    {"F6_E3M2", Dtype::kF6E3M2},
    {"U8", Dtype::kU8},
    {"I8", Dtype::kI8},
    {"F8_E5M2", Dtype::kF8E5M2},
    {"F8_E4M3", Dtype::kF8E4M3},
    {"F8_E8M0", Dtype::kF8E8M0},
    {"F8_E4M3FNUZ", Dtype::kF8E4M3Fnuz},
    {"F8_E5M2FNUZ", Dtype::kF8E5M2Fnuz},
    {"I16", Dtype::kI16},
    {"U16", Dtype::kU16},
    {"F16", Dtype::kF16},
    {"BF16", Dtype::kBF16},
    {"I32", Dtype::kI32},
    {"U32", Dtype::kU32},
    {"F32", Dtype::kF32},
    {"C64", Dtype::kC64},
    {"F64", Dtype::kF64},
    {"I64", Dtype::kI64},
    {"U64", Dtype::kU64},
};
constexpr int kBits[] = {8, 4, 6, 6, 8, 8, 8, 8, 8, 8, 8, 16, 16, 16, 16, 32, 32, 32, 64, 64, 64, 64};
static_assert(std::size(kNames) == std::size(kBits));

constexpr bool in_order() {
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (static_cast<std::size_t>(kNames[i].value) != i) return false;
  }
  return true;
}
static_assert(in_order());

}  // namespace

std::span<const Named<Dtype>> dtypes() { return kNames; }

std::string_view name_of(Dtype dtype) { return kNames[static_cast<std::size_t>(dtype)].name; }

std::optional<Dtype> parse_dtype(std::string_view name) {
  for (const auto& [known, value] : kNames) {
    if (known == name) return value;
  }
  return std::nullopt;
}

int bits_of(Dtype dtype) { return kBits[static_cast<std::size_t>(dtype)]; }

}  // namespace trireme::formats
