// kernels/cpu/sum_rows_body.h -- the loops behind sum_rows.h, included once per instruction set.
#include "trireme/kernels/cpu/sum_rows_table.h"
#include "trireme/kernels/cpu/vec.h"

namespace trireme::kernels {
namespace {

template <typename T>
void sum_rows(const SumRowsLoop& c, std::int64_t begin, std::int64_t end, void* sums) {
  using V = typename LanesOf<T>::Type;
  auto* totals = static_cast<typename V::Scalar*>(sums);
  const auto* x = static_cast<const T*>(c.x);
  std::int64_t row = begin;
  for (; row + 4 <= end; row += 4) {  // four rows for one visit of the totals
    const T *a = row_of(x, row, c.stride), *b = row_of(x, row + 1, c.stride);
    const T *d = row_of(x, row + 2, c.stride), *e = row_of(x, row + 3, c.stride);
    each<V>(c.width, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
      const V four = (V::load(a + i, some) + V::load(b + i, some)) + (V::load(d + i, some) + V::load(e + i, some));
      (V::load(totals + i, some) + four).store(totals + i, some);
    });
  }
  for (; row < end; ++row) {
    const T* a = row_of(x, row, c.stride);
    each<V>(c.width, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
      (V::load(totals + i, some) + V::load(a + i, some)).store(totals + i, some);
    });
  }
}

}  // namespace

extern const SumRowsTable TRIREME_SUM_ROWS_TABLE = {{sum_rows<float>, sum_rows<double>, sum_rows<Bf16>, sum_rows<F16>}};

}  // namespace trireme::kernels
