// kernels/cpu/dropout_body.h -- the loop behind dropout.h, included once per instruction set.
#include "trireme/kernels/cpu/dropout_table.h"
#include "trireme/kernels/cpu/philox_lanes.h"

namespace trireme::kernels {
namespace {

constexpr std::int64_t kPiece = 512;                // coins at a time; they stay in the first-level cache
constexpr std::int64_t kCoins = 4 * kPhiloxBlocks;  // made by one call

template <typename T>
void dropout_rows(const DropoutLoop& c, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  using A = typename V::Scalar;
  alignas(64) std::uint32_t dropout_rng[kPiece + kCoins];
  alignas(64) A factors[kPiece + kCoins];
  const A kept = static_cast<A>(c.factor);
  const V zero = V::all(0);
  for (std::int64_t row = begin; row < end; ++row) {
    T* x = row_of(static_cast<T*>(c.x), row, c.stride);
    const std::uint64_t first =
        static_cast<std::uint64_t>(c.row_index[row]) * static_cast<std::uint64_t>(c.columns_total) +
        static_cast<std::uint64_t>(c.first_column);
    for (std::int64_t column = 0; column < c.width; column += kPiece) {
      const std::int64_t count = c.width - column < kPiece ? c.width - column : kPiece;
      const std::uint64_t number = first + static_cast<std::uint64_t>(column);
      const auto skip = static_cast<std::int64_t>(number % 4);
      for (std::int64_t made = 0; made < skip + count; made += kCoins) {
        philox_blocks(dropout_rng + made, number / 4 + static_cast<std::uint64_t>(made / 4), c.salt, c.key);
        for (std::int64_t i = made; i < made + kCoins; ++i) factors[i] = dropout_rng[i] < c.threshold ? A(0) : kept;
      }
      // Chosen, not multiplied: what falls is 0 even where it was infinite.
      each<V>(count, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
        const V factor = V::load(factors + skip + i, some), v = V::load(x + column + i, some);
        choose(above(factor, zero), v * factor, zero).store(x + column + i, some);
      });
    }
  }
}

}  // namespace

extern const DropoutTable TRIREME_DROPOUT_TABLE = {
    {dropout_rows<float>, dropout_rows<double>, dropout_rows<Bf16>, dropout_rows<F16>}};

}  // namespace trireme::kernels
