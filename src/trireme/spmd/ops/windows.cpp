// Convolutions and pooling. A rank makes a tile of the output, or, for a data gradient, of the input; the rows it needs
// for that lie in its block with halos, and what lies outside of the whole is padding.
#include <ATen/ops/arange.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/avg_pool2d_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/kernels/image_ops.h"
#include "trireme/spmd/ops/kernels.h"

namespace trireme::spmd {
namespace {

struct Rows {
  Index begin = 0, end = 0;  ///< may reach beyond the whole
};

/// These rows of every windowed dimension; those that are not in the block are `value`.
at::Tensor take_rows(const Block& block, const std::vector<Rows>& rows, double value) {
  at::Tensor data = block.data;
  std::vector<std::int64_t> pads;  // the last dimension first
  bool any = false;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t dim = i + 2;
    const Index low = std::clamp(rows[i].begin, block.origin[dim], block.end(dim)),
                high = std::clamp(rows[i].end, low, block.end(dim));
    data = data.narrow(static_cast<std::int64_t>(dim), low - block.origin[dim], high - low);
    const Index before = high == low ? rows[i].end - rows[i].begin : low - rows[i].begin,
                after = high == low ? 0 : rows[i].end - high;
    pads.insert(pads.begin(), {before, after});
    any = any || before > 0 || after > 0;
  }
  return any ? at::constant_pad_nd(data, pads, value) : data.contiguous();
}

std::vector<std::int64_t> of_windows(const std::vector<pg::Window>& windows, Index pg::Window::*member) {
  std::vector<std::int64_t> values;
  for (const pg::Window& window : windows) values.push_back(window.*member);
  return values;
}

/// Rows of the input that a tile of the output reads, padding included.
std::vector<Rows> read_rows(const std::vector<pg::Window>& windows, const std::vector<Index>& origin,
                            const std::vector<Index>& sizes) {
  std::vector<Rows> rows;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const pg::Window& w = windows[i];
    const Index begin = origin[i + 2], end = begin + sizes[i + 2];
    rows.push_back({begin * w.stride - w.padding, (end - 1) * w.stride - w.padding + (w.kernel - 1) * w.dilation + 1});
  }
  return rows;
}

/// Rows of the output that read a tile of the input, and the rows of the input that those reach.
struct Reach {
  std::vector<Rows> out, in;
  bool empty = false;
};
Reach reach_of(const pg::Graph& graph, const std::vector<pg::Window>& windows, const Place& tile) {
  Reach reach;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const pg::Window& w = windows[i];
    const Index begin = tile.origin[i + 2];
    const auto [first, last] = w.output_rows(begin, begin + tile.sizes[i + 2], graph.size(w.out));
    reach.empty = reach.empty || first >= last;
    reach.out.push_back({first, last});
    reach.in.push_back(
        {first * w.stride - w.padding, (last - 1) * w.stride - w.padding + (w.kernel - 1) * w.dilation + 1});
  }
  return reach;
}

std::vector<Rows> rows_of(const Place& tile) {
  std::vector<Rows> rows;
  for (std::size_t i = 2; i < tile.sizes.size(); ++i) rows.push_back({tile.origin[i], tile.origin[i] + tile.sizes[i]});
  return rows;
}

/// What was made for the rows `at` in the shape of `tile`.
at::Tensor cut_to(const at::Tensor& made, const std::vector<Rows>& at, const Place& tile) {
  Block block{made, tile.origin};
  for (std::size_t i = 0; i < at.size(); ++i) block.origin[i + 2] = at[i].begin;
  return take_rows(block, rows_of(tile), 0);
}

void check_rows(const Block& block, const std::vector<Rows>& rows, const pg::Graph& graph, const OpCall& call,
                bool out) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const pg::Window& w = call.forward().windows[i];
    const Index whole = graph.size(out ? w.out : w.in);
    TRIREME_CHECK(
        std::max<Index>(rows[i].begin, 0) >= block.origin[i + 2] && std::min(rows[i].end, whole) <= block.end(i + 2),
        "operator {} lacks rows of a halo", call.op.name);
  }
}

/// Whether this is every row of every window, so that the library's own padding does. With halos a block of a small
/// image may be all of it where the tile that is made is not: both must be asked.
bool has_all_rows(const OpCall& call, const std::vector<Index>& sizes, bool out) {
  const auto& windows = call.forward().windows;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const pg::Window& w = windows[i];
    if (sizes[i + 2] != call.graph.size(out ? w.out : w.in)) return false;
    const Index reached = call.graph.size(w.in) + 2 * w.padding - (w.kernel - 1) * w.dilation - 1;
    if (reached < 0 || reached / w.stride + 1 != call.graph.size(w.out)) return false;
  }
  return true;
}

/// A convolution or one of its gradients without halos. Undefined where that is not all there is to it.
at::Tensor convolution_of_whole(const OpCall& call) {
  const pg::Op& op = call.op;
  const Block& x = call.inputs[0];
  const std::vector<Index>& tile = call.outputs[0].sizes;
  const auto stride = of_windows(op.windows, &pg::Window::stride),
             padding = of_windows(op.windows, &pg::Window::padding),
             dilation = of_windows(op.windows, &pg::Window::dilation);
  const std::vector<std::int64_t> none(op.windows.size(), 0);
  switch (op.part) {
    case pg::Part::kForward:
      if (!has_all_rows(call, x.data.sizes().vec(), false) || !has_all_rows(call, tile, true)) return {};
      return at::convolution(x.data, call.inputs[1].data, c10::nullopt, stride, padding, dilation, false, none, 1);
    case pg::Part::kBackwardWeight: {
      const Block& gradient = call.inputs[1];
      if (!has_all_rows(call, x.data.sizes().vec(), false) || !has_all_rows(call, gradient.data.sizes().vec(), true))
        return {};
      const at::Tensor shape = at::empty(call.outputs[0].sizes, x.data.options(), x.data.suggest_memory_format());
      return std::get<1>(at::convolution_backward(gradient.data, x.data, shape, c10::nullopt, stride, padding, dilation,
                                                  false, none, 1, {false, true, false}));
    }
    case pg::Part::kBackwardData: {
      if (op.forward < 0 || !has_all_rows(call, x.data.sizes().vec(), true) || !has_all_rows(call, tile, false))
        return {};
      const at::Tensor shape = at::empty(call.outputs[0].sizes, x.data.options(), x.data.suggest_memory_format());
      return std::get<0>(at::convolution_backward(x.data, shape, call.inputs[1].data, c10::nullopt, stride, padding,
                                                  dilation, false, none, 1, {true, false, false}));
    }
    default:
      return {};
  }
}

}  // namespace

Outputs run_convolution(OpCall& call) {
  const pg::Op& op = call.op;
  if (at::Tensor whole = one_by_one_convolution(call, [&] { return convolution_of_whole(call); }); whole.defined()) {
    if (op.bias && call.inputs[0].origin[1] == 0)
      whole += aligned(call.inputs.back().data, call.dims(op.inputs.back()), call.dims(op.outputs[0]));
    return {packed(whole)};
  }
  const auto stride = of_windows(op.windows, &pg::Window::stride),
             dilation = of_windows(op.windows, &pg::Window::dilation);
  const std::vector<std::int64_t> none(op.windows.size(), 0);
  const Block& x = call.inputs[0];
  const Place& tile = call.outputs[0];
  if (op.part == pg::Part::kBackwardWeight) {
    const Block& gradient = call.inputs[1];
    const std::vector<Rows> rows = read_rows(op.windows, gradient.origin, gradient.data.sizes().vec());
    check_rows(x, rows, call.graph, call, false);
    const at::Tensor shape = at::empty(tile.sizes, x.data.options());
    return {std::get<1>(at::convolution_backward(gradient.data, take_rows(x, rows, 0), shape, c10::nullopt, stride,
                                                 none, dilation, false, none, 1, {false, true, false}))
                .contiguous()};
  }
  const at::Tensor& weight = call.inputs[1].data;
  at::Tensor result;
  if (op.part == pg::Part::kForward) {
    const std::vector<Rows> rows = read_rows(op.windows, tile.origin, tile.sizes);
    check_rows(x, rows, call.graph, call, false);
    result = at::convolution(take_rows(x, rows, 0), weight, c10::nullopt, stride, none, dilation, false, none, 1);
  } else {
    const Reach reach = reach_of(call.graph, op.windows, tile);
    if (reach.empty) {
      result = at::zeros(tile.sizes, x.data.options());
    } else {
      check_rows(x, reach.out, call.graph, call, true);
      const at::Tensor made =
          at::convolution(take_rows(x, reach.out, 0), weight, c10::nullopt, stride, none, dilation, true, none, 1);
      result = cut_to(made, reach.in, tile);
    }
  }
  // Of the ranks that hold summands, the one with the first input channels adds the bias.
  if (op.bias && x.origin[1] == 0)
    result = result + aligned(call.inputs.back().data, call.dims(op.inputs.back()), call.dims(op.outputs[0]));
  return {result.contiguous()};
}

namespace {

/// Max pooling of whole images on a GPU: which element of its window won takes a byte of each output, not eight.
kernels::PoolShape pool_shape(const std::vector<pg::Window>& windows) {
  return {.kernel = {windows[0].kernel, windows[1].kernel},
          .stride = {windows[0].stride, windows[1].stride},
          .padding = {windows[0].padding, windows[1].padding}};
}
bool fits_max_pool(const OpCall& call, const at::Tensor& image) {
  const auto& windows = call.forward().windows;
  return call.fused_images && kernels::fits_image_ops(image) && windows[0].dilation == 1 && windows[1].dilation == 1 &&
         windows[0].kernel * windows[1].kernel <= 256;
}

}  // namespace

Outputs run_pooling(OpCall& call) {
  const pg::Op& forward = call.forward();
  const auto& windows = forward.windows;
  const bool is_max = forward.function == "max";
  const auto kernel = of_windows(windows, &pg::Window::kernel), stride = of_windows(windows, &pg::Window::stride),
             dilation = of_windows(windows, &pg::Window::dilation);
  const Place& tile = call.outputs[0];
  const auto padding = of_windows(windows, &pg::Window::padding);
  if (call.op.part == pg::Part::kForward && is_max && has_all_rows(call, tile.sizes, true)) {
    if (fits_max_pool(call, call.inputs[0].data)) {
      auto [y, winner] = kernels::max_pool(call.inputs[0].data, pool_shape(windows), tile.sizes[2], tile.sizes[3]);
      call.kept["winner"] = winner;
      return {y};
    }
    auto [y, index] = at::max_pool2d_with_indices(call.inputs[0].data, kernel, stride, padding, dilation);
    call.kept["winner"] = index;  // by its number in the whole image
    return {y};
  }
  if (call.op.part == pg::Part::kForward) {
    const Block& x = call.inputs[0];
    const std::vector<Rows> rows = read_rows(windows, tile.origin, tile.sizes);
    check_rows(x, rows, call.graph, call, false);
    const at::Tensor taken = take_rows(x, rows, is_max ? -std::numeric_limits<double>::infinity() : 0);
    if (!is_max) return {at::avg_pool2d(taken, kernel, stride)};
    auto [y, index] = at::max_pool2d_with_indices(taken, kernel, stride, 0, dilation);
    // Which element of its window is the largest, by its number in the window.
    const auto width = taken.size(3);
    const at::Tensor row = index.floor_divide(width), column = index.remainder(width);
    const at::Tensor top = at::arange(y.size(2), index.options()).mul(stride[0]).view({-1, 1}),
                     left = at::arange(y.size(3), index.options()).mul(stride[1]);
    call.kept["winner"] =
        ((row - top).floor_divide(dilation[0]) * kernel[1] + (column - left).floor_divide(dilation[1]))
            .to(y.scalar_type());
    return {y};
  }
  const Block* gradient = call.gradient(forward.outputs[0]);
  TRIREME_CHECK(gradient, "operator {} has no gradient to pass on", call.op.name);
  if (is_max && has_all_rows(call, tile.sizes, false)) {
    const Block* winner = call.operand(forward.outputs[0]);
    TRIREME_CHECK(winner, "operator {} has lost what it kept", call.op.name);
    if (winner->data.scalar_type() == at::kByte) {
      const at::Tensor dy = gradient->data.contiguous(at::MemoryFormat::ChannelsLast);
      return {kernels::max_pool_backward(dy, winner->data, pool_shape(windows), tile.sizes[2], tile.sizes[3])};
    }
    const at::Tensor shape = at::empty(tile.sizes, gradient->data.options(), gradient->data.suggest_memory_format());
    return {at::max_pool2d_with_indices_backward(gradient->data, shape, kernel, stride, padding, dilation, false,
                                                 winner->data)};
  }
  const Reach reach = reach_of(call.graph, windows, tile);
  if (reach.empty) return {at::zeros(tile.sizes, gradient->data.options())};
  check_rows(*gradient, reach.out, call.graph, call, true);
  const at::Tensor g = take_rows(*gradient, reach.out, 0);
  const Index height = reach.in[0].end - reach.in[0].begin, width = reach.in[1].end - reach.in[1].begin;
  at::Tensor made = at::zeros({g.size(0), g.size(1), height, width}, g.options());
  if (!is_max) {
    made = at::avg_pool2d_backward(g, made, kernel, stride, {0, 0}, false, true, c10::nullopt);
  } else {
    const Block* winner = call.operand(forward.outputs[0]);
    TRIREME_CHECK(winner, "operator {} has lost what it kept", call.op.name);
    const at::Tensor number = take_rows(*winner, reach.out, 0).to(at::kLong);
    const at::Tensor top = at::arange(g.size(2), number.options()).mul(stride[0]).view({-1, 1}),
                     left = at::arange(g.size(3), number.options()).mul(stride[1]);
    const at::Tensor index =
        (top + number.floor_divide(kernel[1]) * dilation[0]) * width + left + number.remainder(kernel[1]) * dilation[1];
    made.view({g.size(0), g.size(1), -1}).scatter_add_(2, index.flatten(2), g.flatten(2));
  }
  return {cut_to(made, reach.in, tile).contiguous()};
}

}  // namespace trireme::spmd
