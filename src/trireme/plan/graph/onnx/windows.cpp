// Convolutions and pooling of ONNX, on images of samples, channels, heights and widths.
#include <fmt/format.h>

#include <algorithm>

#include "trireme/plan/graph/onnx/importer.h"

namespace trireme::plan::graph {

using formats::OnnxNode;

namespace {

constexpr std::int64_t kMostPixels = 1 << 20;  // of a kernel, a stride, a padding

}  // namespace

/// Kernel, stride, padding and dilation of both axes; `transposed`: from few rows to many.
OnnxWindowHandlers::Windows OnnxWindowHandlers::windows_of(OnnxImporter& in, const OnnxNode& node, const OnnxOperand& x,
                                                           const std::vector<std::int64_t>& kernel, bool transposed) {
  const auto stride = in.attributes(node, "strides", 2, 1, 1, kMostPixels),
             dilation = in.attributes(node, "dilations", 2, 1, 1, 1024);
  auto pads = in.attributes(node, "pads", 4, 0, 0, kMostPixels);
  const auto extra = in.attributes(node, "output_padding", 2, 0, 0, kMostPixels);
  const auto* auto_pad = node.attribute("auto_pad");
  const std::string how = auto_pad && !auto_pad->text.empty() ? auto_pad->text : "NOTSET";
  Windows result;
  for (std::size_t i = 0; i < 2; ++i) {
    const int dim = x.axes[i + 2];
    if (dim == kUnitAxis) in.fail(node, "its input has no heights and widths", "export the model again");
    const Index size = in.size(dim), reach = (kernel[i] - 1) * dilation[i];
    if (how == "SAME_UPPER" || how == "SAME_LOWER") {
      const Index rows = (size + stride[i] - 1) / stride[i];
      const Index both = std::max<Index>(0, (rows - 1) * stride[i] + reach + 1 - size);
      pads[i] = both / 2;
      pads[i + 2] = both - both / 2;
    } else if (how != "NOTSET" && how != "VALID") {
      in.fail(node, "its auto_pad is " + formats::shown(how), "export it with pads");
    }
    if (pads[i] != pads[i + 2])
      in.fail(node,
              fmt::format("it pads {} rows before and {} after, and windows of graphs pad alike", pads[i], pads[i + 2]),
              "pad alike, or put the padding into the data");
    Window window{.kernel = kernel[i], .stride = stride[i], .padding = pads[i], .dilation = dilation[i]};
    const Index rows = transposed ? (size - 1) * stride[i] - 2 * pads[i] + reach + 1 + extra[i]
                                  : (size + 2 * pads[i] - reach - 1) / stride[i] + 1;
    if (rows < 1 || size + 2 * pads[i] < reach + 1)
      in.fail(node, fmt::format("a kernel of {} does not fit into {} rows", kernel[i], size), "take larger images");
    const int to = rows == size ? dim : in.named_dim(fmt::format("{}{}", i == 0 ? 'h' : 'w', rows), rows);
    window.in = transposed ? to : dim;
    window.out = transposed ? dim : to;
    result.windows.push_back(window);
    result.rows.push_back(to);
  }
  return result;
}

const OnnxOperand& OnnxWindowHandlers::image(OnnxImporter& in, const OnnxNode& node) {
  const OnnxOperand& x = in.input(node, 0);
  if (x.axes.size() != 4 || x.axes[0] == kUnitAxis || x.axes[1] == kUnitAxis)
    in.fail(node,
            fmt::format("its input has {} axes, and images have samples, channels, heights and widths", x.axes.size()),
            "models with one or three spatial axes are not imported");
  return x;
}

void OnnxWindowHandlers::convolve(OnnxImporter& in, const OnnxNode& node, bool transposed) {
  const OnnxOperand x = image(in, node);
  in.attribute(node, "group", 1, 1, 1);
  const formats::OnnxTensor* weight = in.stored(node, 1);
  if (!weight || weight->dims.size() != 4 ||
      std::ranges::any_of(weight->dims, [](auto d) { return d < 1 || d > kMostPixels; }))
    in.fail(node, "its weights are not stored with four axes", "export the model again");
  const std::vector<std::int64_t> kernel(weight->dims.begin() + 2, weight->dims.end());
  Windows windows = windows_of(in, node, x, kernel, transposed);
  const int channels = in.new_dim(node.name + ".c", weight->dims[transposed ? 1 : 0]);
  std::vector<int> dims = transposed ? std::vector<int>{x.axes[1], channels} : std::vector<int>{channels, x.axes[1]};
  for (std::size_t i = 0; i < 2; ++i) {
    windows.windows[i].kernel_dim = in.named_dim(fmt::format("k{}{}", i == 0 ? 'h' : 'w', kernel[i]), kernel[i]);
    dims.push_back(windows.windows[i].kernel_dim);
  }
  Op op{.kind = OpKind::kConvolution,
        .part = transposed ? Part::kBackwardData : Part::kForward,
        .inputs = {x.tensor, in.parameter(node, 1, dims)},
        .bias = in.has_input(node, 2),
        .windows = windows.windows};
  if (op.bias) op.inputs.push_back(in.parameter(node, 2, {channels}));
  in.emit(node, std::move(op), {x.axes[0], channels, windows.rows[0], windows.rows[1]});
}

void OnnxWindowHandlers::convolution(OnnxImporter& in, const OnnxNode& node) { convolve(in, node, false); }
void OnnxWindowHandlers::transposed_convolution(OnnxImporter& in, const OnnxNode& node) { convolve(in, node, true); }

void OnnxWindowHandlers::pool(OnnxImporter& in, const OnnxNode& node, bool is_max) {
  const OnnxOperand x = image(in, node);
  const auto kernel = in.attributes(node, "kernel_shape", 2, 1, 1, kMostPixels);
  const Windows windows = windows_of(in, node, x, kernel, false);
  const bool rounds_up = in.attribute(node, "ceil_mode", 0, 0, 1) == 1;
  for (std::size_t i = 0; i < 2; ++i) {
    const Window& window = windows.windows[i];
    const Index reach = in.size(window.in) + 2 * window.padding - (window.kernel - 1) * window.dilation - 1;
    if (rounds_up && reach % window.stride != 0)
      in.fail(node, "its last window reaches beyond the image (ceil_mode)", "export it with ceil_mode = 0");
    if (!is_max && window.padding > 0 && in.attribute(node, "count_include_pad", 0, 0, 1) == 0)
      in.fail(node, "it averages without its padding", "export it with count_include_pad = 1");
    if (!is_max && window.dilation > 1) in.fail(node, "average pooling has no dilation", "export it without");
  }
  in.emit(node,
          {.kind = OpKind::kPooling,
           .inputs = {x.tensor},
           .function = is_max ? "max" : "average",
           .windows = windows.windows},
          {x.axes[0], x.axes[1], windows.rows[0], windows.rows[1]});
}

void OnnxWindowHandlers::max_pool(OnnxImporter& in, const OnnxNode& node) { pool(in, node, true); }
void OnnxWindowHandlers::average_pool(OnnxImporter& in, const OnnxNode& node) { pool(in, node, false); }

}  // namespace trireme::plan::graph
