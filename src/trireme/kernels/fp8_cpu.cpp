#include "trireme/kernels/fp8_cpu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>

#include "trireme/base/error.h"

namespace trireme::kernels {
namespace {

constexpr std::int64_t kFp8Tile = 128;

/// What a tile's numbers are multiplied by, as they lie (by row) and transposed (by column).
struct TileShares {
  std::array<float, kFp8Tile> rows = {}, columns = {};
};

float fp8_scale(float largest, Fp8Format format) { return largest > 0 ? largest / fp8_largest(format) : 1.0F; }

/// One call, of numbers of one type.
template <typename T>
class TileRounding {
 public:
  explicit TileRounding(const CudaFp8& call)
      : c_(call), format_(call.format == CudaFp8::kE4m3 ? Fp8Format::kE4m3 : Fp8Format::kE5m2) {}

  void run() {
    if (c_.scaling == CudaFp8::kWhole) find_whole_scale();
    const std::int64_t across = tiles(c_.width), count = tiles(c_.rows) * across;
    at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t tile = begin; tile < end; ++tile) round_tile(tile / across, tile % across);
    });
  }

 private:
  static std::int64_t tiles(std::int64_t size) { return (size + kFp8Tile - 1) / kFp8Tile; }
  const T* row(std::int64_t index) const { return static_cast<const T*>(c_.x) + index * c_.stride; }
  /// NaN is passed over, as fmax does.
  static float larger(float most, T value) { return std::fmax(most, std::fabs(static_cast<float>(value))); }

  void find_whole_scale() {
    float most = 0;
    if (c_.scale == nullptr || c_.amax != nullptr) {
      for (std::int64_t r = 0; r < c_.rows; ++r) {
        for (std::int64_t k = 0; k < c_.width; ++k) most = larger(most, row(r)[k]);
      }
    }
    if (c_.amax != nullptr) *c_.amax = std::max(*c_.amax, most);
    whole_ = c_.scale != nullptr ? *c_.scale : fp8_scale(most, format_);
    if (c_.row_scales != nullptr) *c_.row_scales = whole_;
    if (c_.column_scales != nullptr) *c_.column_scales = whole_;
  }

  TileShares shares_of(std::int64_t tile_row, std::int64_t tile_column, std::int64_t rows, std::int64_t columns) {
    TileShares shares;
    if (c_.scaling == CudaFp8::kWhole) {
      shares.rows.fill(1.0F / whole_);
      shares.columns.fill(1.0F / whole_);
      return shares;
    }
    const std::int64_t first_row = tile_row * kFp8Tile, first_column = tile_column * kFp8Tile;
    for (std::int64_t r = 0; r < rows; ++r) {  // the largest of each line first
      const T* x = row(first_row + r) + first_column;
      for (std::int64_t k = 0; k < columns; ++k) {
        auto& of_row = shares.rows[static_cast<std::size_t>(r)];
        auto& of_column = shares.columns[static_cast<std::size_t>(k)];
        of_row = larger(of_row, x[k]);
        of_column = larger(of_column, x[k]);
      }
    }
    if (c_.scaling == CudaFp8::kTile) {
      const float scale = fp8_scale(*std::max_element(shares.rows.begin(), shares.rows.end()), format_);
      if (c_.row_scales != nullptr) c_.row_scales[tile_row * c_.row_scale_stride + tile_column] = scale;
      if (c_.column_scales != nullptr) c_.column_scales[tile_column * c_.column_scale_stride + tile_row] = scale;
      shares.rows.fill(1.0F / scale);
      shares.columns.fill(1.0F / scale);
      return shares;
    }
    const auto settle = [&](std::array<float, kFp8Tile>& lines, std::int64_t count, float* scales) {
      for (std::int64_t i = 0; i < count; ++i) {
        float& line = lines[static_cast<std::size_t>(i)];
        const float scale = fp8_scale(line, format_);
        if (scales != nullptr) scales[i] = scale;
        line = 1.0F / scale;
      }
    };
    settle(shares.rows, rows,
           c_.row_scales == nullptr ? nullptr : c_.row_scales + tile_column * c_.row_scale_stride + first_row);
    settle(shares.columns, columns,
           c_.column_scales == nullptr ? nullptr : c_.column_scales + tile_row * c_.column_scale_stride + first_column);
    return shares;
  }

  void round_tile(std::int64_t tile_row, std::int64_t tile_column) {
    const std::int64_t first_row = tile_row * kFp8Tile, first_column = tile_column * kFp8Tile;
    const std::int64_t rows = std::min(kFp8Tile, c_.rows - first_row),
                       columns = std::min(kFp8Tile, c_.width - first_column);
    const TileShares shares = shares_of(tile_row, tile_column, rows, columns);
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* x = row(first_row + r) + first_column;
      for (std::int64_t k = 0; k < columns; ++k) {
        const auto value = static_cast<float>(x[k]);
        if (c_.out_rows != nullptr) {
          c_.out_rows[(first_row + r) * c_.width + first_column + k] =
              encode_fp8(value * shares.rows[static_cast<std::size_t>(r)], format_);
        }
        if (c_.out_columns != nullptr) {
          c_.out_columns[(first_column + k) * c_.rows + first_row + r] =
              encode_fp8(value * shares.columns[static_cast<std::size_t>(k)], format_);
        }
      }
    }
  }

  const CudaFp8& c_;
  Fp8Format format_;
  float whole_ = 1;
};

at::Tensor decoded(const at::Tensor& values) {
  const Fp8Format format = values.scalar_type() == at::kFloat8_e4m3fn ? Fp8Format::kE4m3 : Fp8Format::kE5m2;
  std::array<float, 256> table = {};
  for (std::size_t code = 0; code < table.size(); ++code)
    table[code] = decode_fp8(static_cast<std::uint8_t>(code), format);
  const at::Tensor codes = values.contiguous();
  at::Tensor out = at::empty(values.sizes(), values.options().dtype(at::kFloat));
  const auto* from = static_cast<const std::uint8_t*>(codes.const_data_ptr());
  std::transform(from, from + codes.numel(), out.mutable_data_ptr<float>(),
                 [&](std::uint8_t code) { return table[code]; });
  return out;
}

/// The scale of each row in one block of k, [n].
at::Tensor scales_in_block(const GemmOperand& of, std::int64_t block) {
  if (of.scaling == Fp8Scaling::kBlocks1x128) return of.scales.select(0, block);
  return of.scales.select(1, block).repeat_interleave(kFp8Tile).narrow(0, 0, of.values.size(0));
}

}  // namespace

void fp8_on_cpu(const CudaFp8& call) {
  TRIREME_CHECK(call.up == nullptr, "on the CPU a gated activation is written before it is quantised");
  switch (call.element) {
    case Element::kFloat:
      return TileRounding<float>(call).run();
    case Element::kBfloat16:
      return TileRounding<c10::BFloat16>(call).run();
    case Element::kHalf:
      return TileRounding<c10::Half>(call).run();
    case Element::kDouble:
      break;
  }
  TRIREME_CHECK(false, "doubles are not quantised to FP8");
}

at::Tensor fp8_gemm_on_cpu(const GemmOperand& a, const GemmOperand& b) {
  const at::Tensor left = decoded(a.values), right = decoded(b.values);
  if (a.scaling == Fp8Scaling::kTensor) return at::mm(left, right.t()).mul_(a.scales.mul(b.scales));
  const std::int64_t k = left.size(1);
  at::Tensor sum = at::zeros({left.size(0), right.size(0)}, left.options());
  for (std::int64_t begin = 0; begin < k; begin += kFp8Tile) {
    const std::int64_t length = std::min(kFp8Tile, k - begin), block = begin / kFp8Tile;
    const at::Tensor part = at::mm(left.narrow(1, begin, length), right.narrow(1, begin, length).t());
    sum.add_(part.mul_(scales_in_block(a, block).unsqueeze(1)).mul_(scales_in_block(b, block).unsqueeze(0)));
  }
  return sum;
}

}  // namespace trireme::kernels
