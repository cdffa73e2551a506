// kernels/cpu/sign_codes_body.h -- the loops behind gradient_codes.h that write one bit an element, included once per
// instruction set. Ends of rows go element by element, each in the lane that it would have had.
#include "trireme/kernels/cpu/code_lanes.h"
#include "trireme/kernels/cpu/sign_codes_table.h"

namespace trireme::kernels {
namespace {

/// A row of c = gradient + kept: its signs, and sums of its two sides by lanes.
struct RowSides {
  float above[kCodeLanes], below[kCodeLanes];
  std::int64_t ups = 0;
};

TRIREME_INLINE void begin_row(const float* g, const float* e, float* c, std::int64_t columns, std::uint8_t* signs,
                              RowSides& sides) {
  const CodeLanes zero = CodeLanes::all(0);
  CodeLanes above = zero, below = zero;
  std::int64_t i = 0;
  for (; i + kCodeLanes <= columns; i += kCodeLanes) {
    const CodeLanes value = CodeLanes::load(g + i) + CodeLanes::load(e + i);
    value.store(c + i);
    const CodeMask up = not_below_zero(value);
    const std::uint32_t bits = up.bits();
    put_bits(signs + i / 8, bits);
    sides.ups += __builtin_popcount(bits);
    above = above + choose(up, value, zero);
    below = below + choose(up, zero, value);
  }
  above.store(sides.above);
  below.store(sides.below);
  if (i == columns) return;
  std::uint32_t bits = 0;
  for (int lane = 0; i + lane < columns; ++lane) {
    const float value = g[i + lane] + e[i + lane];
    c[i + lane] = value;
    const bool up = value >= 0;
    sides.above[lane] += up ? value : 0.0F;
    sides.below[lane] += up ? 0.0F : value;
    bits |= (up ? 1U : 0U) << lane;
  }
  sides.ups += __builtin_popcount(bits);
  put_bits(signs + i / 8, bits, columns - i);
}

TRIREME_INLINE void leave_row(float* c, std::int64_t columns, float down, float up, SignSquares& squares) {
  const CodeLanes low = CodeLanes::all(down), high = CodeLanes::all(up);
  CodeLanes lefts = CodeLanes::all(0), wholes = lefts;
  std::int64_t i = 0;
  for (; i + kCodeLanes <= columns; i += kCodeLanes) {
    const CodeLanes value = CodeLanes::load(c + i), rest = value - choose(not_below_zero(value), high, low);
    wholes = wholes + value * value;
    lefts = lefts + rest * rest;
    rest.store(c + i);
  }
  float left[kCodeLanes], whole[kCodeLanes];
  lefts.store(left);
  wholes.store(whole);
  for (int lane = 0; i + lane < columns; ++lane) {
    const float value = c[i + lane], rest = value - (value >= 0 ? up : down);
    whole[lane] += value * value;
    left[lane] += rest * rest;
    c[i + lane] = rest;
  }
  squares.left += join_lanes(left);
  squares.whole += join_lanes(whole);
}

SignSquares encode_rows(const SignRowsLoop& call) {
  SignSquares squares;
  std::uint8_t* code = call.code;
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const std::int64_t at = row * call.columns;
    float* c = call.next + at;  // a row stays in the cache for the second pass
    RowSides sides;
    begin_row(call.gradient + at, call.kept + at, c, call.columns, code + 2 * sizeof(float), sides);
    const auto ups = static_cast<double>(sides.ups), downs = static_cast<double>(call.columns) - ups;
    const float means[2] = {static_cast<float>(downs > 0 ? join_lanes(sides.below) / downs : 0),
                            static_cast<float>(ups > 0 ? join_lanes(sides.above) / ups : 0)};
    std::memcpy(code, means, sizeof(means));
    leave_row(c, call.columns, means[0], means[1], squares);
    code += sizeof(means) + (call.columns + 7) / 8;
  }
  return squares;
}

/// body(i, mask) for sixteen elements each, then rest(i, bit) for those at the end.
template <typename Body, typename Rest>
TRIREME_INLINE void by_signs(const std::uint8_t* signs, std::int64_t count, Body&& body, Rest&& rest) {
  std::int64_t i = 0;
  for (; i + kCodeLanes <= count; i += kCodeLanes) body(i, CodeMask::of(take_bits(signs + i / 8)));
  for (; i < count; ++i) rest(i, ((signs[i / 8] >> (i % 8)) & 1) != 0);
}

void add_rows(const std::uint8_t* code, std::int64_t rows, std::int64_t columns, float* sum) {
  for (std::int64_t row = 0; row < rows; ++row, sum += columns) {
    float means[2];
    std::memcpy(means, code, sizeof(means));
    const CodeLanes low = CodeLanes::all(means[0]), high = CodeLanes::all(means[1]);
    by_signs(
        code + sizeof(means), columns,
        [&](std::int64_t i, const CodeMask& up)
            TRIREME_LAMBDA { (CodeLanes::load(sum + i) + choose(up, high, low)).store(sum + i); },
        [&](std::int64_t i, bool up) TRIREME_LAMBDA { sum[i] += up ? means[1] : means[0]; });
    code += sizeof(means) + (columns + 7) / 8;
  }
}

double begin_scaled(const ScaledSignsLoop& call, std::int64_t& moving) {
  const CodeLanes zero = CodeLanes::all(0);
  CodeSquares squares;
  std::int64_t i = 0;
  moving = 0;
  for (; i + kCodeLanes <= call.count; i += kCodeLanes) {
    const CodeMask still = is_zero(CodeLanes::load(call.variance + i));
    const CodeLanes c = choose(still, zero, CodeLanes::load(call.values + i) + CodeLanes::load(call.kept + i));
    c.store(call.next + i);
    squares.add(c);
    put_bits(call.signs + i / 8, not_below_zero(c).bits());
    const std::uint32_t moves = ~still.bits() & 0xffffU;
    put_bits(call.moves + i / 8, moves);
    moving += __builtin_popcount(moves);
  }
  double lanes[kCodeLanes];
  squares.store(lanes);
  std::uint32_t ups = 0, moves = 0;
  for (int lane = 0; i + lane < call.count; ++lane) {
    const std::int64_t at = i + lane;
    const bool is_moving = call.variance[at] != 0;
    const float c = is_moving ? call.values[at] + call.kept[at] : 0.0F;
    call.next[at] = c;
    lanes[lane] += square_in_double(c);
    ups |= (c >= 0 ? 1U : 0U) << lane;
    moves |= (is_moving ? 1U : 0U) << lane;
  }
  if (i < call.count) {
    put_bits(call.signs + i / 8, ups, call.count - i);
    put_bits(call.moves + i / 8, moves, call.count - i);
    moving += __builtin_popcount(moves);
  }
  return join_lanes(lanes);
}

double leave_scaled(const ScaledSignsLoop& call, float scale) {
  const CodeLanes zero = CodeLanes::all(0), up = CodeLanes::all(scale), down = CodeLanes::all(-scale);
  CodeSquares squares;
  std::int64_t i = 0;
  for (; i + kCodeLanes <= call.count; i += kCodeLanes) {
    const CodeMask signs = CodeMask::of(take_bits(call.signs + i / 8)),
                   moves = CodeMask::of(take_bits(call.moves + i / 8));
    const CodeLanes rest = choose(moves, CodeLanes::load(call.next + i) - choose(signs, up, down), zero);
    rest.store(call.next + i);
    squares.add(rest);
  }
  double lanes[kCodeLanes];
  squares.store(lanes);
  for (int lane = 0; i + lane < call.count; ++lane) {
    const std::int64_t at = i + lane;
    const float c = call.next[at];
    const float rest = ((call.moves[at / 8] >> (at % 8)) & 1) != 0 ? c - (c >= 0 ? scale : -scale) : 0.0F;
    call.next[at] = rest;
    lanes[lane] += square_in_double(rest);
  }
  return join_lanes(lanes);
}

void add_scaled(const std::uint8_t* signs, const float* variance, std::int64_t count, float up, float down,
                float* sum) {
  const CodeLanes high = CodeLanes::all(up), low = CodeLanes::all(down);
  by_signs(
      signs, count,
      [&](std::int64_t i, const CodeMask& ups) TRIREME_LAMBDA {
        const CodeLanes before = CodeLanes::load(sum + i);
        const CodeMask still = is_zero(CodeLanes::load(variance + i));
        choose(still, before, before + choose(ups, high, low)).store(sum + i);
      },
      [&](std::int64_t i, bool is_up) TRIREME_LAMBDA {
        if (variance[i] != 0) sum[i] += is_up ? up : down;
      });
}

double squares(const float* values, std::int64_t count) {
  CodeSquares sums;
  std::int64_t i = 0;
  for (; i + kCodeLanes <= count; i += kCodeLanes) sums.add(CodeLanes::load(values + i));
  double lanes[kCodeLanes];
  sums.store(lanes);
  for (int lane = 0; i + lane < count; ++lane) lanes[lane] += square_in_double(values[i + lane]);
  return join_lanes(lanes);
}

}  // namespace

extern const SignCodesTable TRIREME_SIGN_CODES_TABLE = {encode_rows,  add_rows,   begin_scaled,
                                                        leave_scaled, add_scaled, squares};

}  // namespace trireme::kernels
